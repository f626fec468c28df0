"""A host's processes and the supervisor's shell around the real worker group."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from drumbeat.agent.model import messages
from drumbeat.agent.workers.supervisor import worker_group
from drumbeat.agent.workers.supervisor.worker_group import WorkerGroup
from tests.simulation.clock import Actor
from tests.simulation.machines.wrapped import Program

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.machines.host import Host
    from tests.simulation.machines.wrapped import Desk

SIGKILL, SIGCONT, SIGSTOP = 9, 18, 19


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What one worker will do by itself and when it is signalled."""

    exits_after_s: float | None = None
    exit_code: int = 0
    term_s: float | None = 0.01  # None: it ignores the signal
    term_code: int | None = None  # None: it dies of the signal
    kill_s: float = 0.001  # longer than the group waits: held by the kernel
    leaves_child_s: float | None = None  # a process of its own that lives on for this long


@dataclass(slots=True, kw_only=True, eq=False)
class Process:
    """A worker, or something it left behind (``local_rank`` is ``None``)."""

    pid: int
    round_id: int
    local_rank: int | None
    owner: str
    habits: Habits
    is_alive: bool = True
    is_doomed: bool = False
    is_stopped: bool = False  # by a rehearsal
    program: Program | None = None  # of a worker that restarts in process


class Supervisor:
    """One life of the supervisor. Events go to ``on_event`` in order, with a small delay."""

    def __init__(
        self,
        host: Host,
        on_event: Callable[[messages.GroupEvent], None],
        agent: Actor,
        desk: Desk,
    ) -> None:
        self.actor = Actor(f"{agent.name}/sup{host.next_number()}")
        self.group = WorkerGroup()
        self.processes: list[Process] = []
        self._host, self._clock, self._agent = host, host.clock, agent
        self._on_event = on_event
        self._desk = desk
        self._random = host.clock.random(self.actor.name)
        self._ended: dict[int, int] = {}
        self._latest_in = self._latest_out = 0.0

    # The shell: what ``drumbeat.agent.workers.supervisor.process`` does.

    def send(self, command: messages.GroupCommand) -> None:
        """Take a command from the agent, a moment later and in order."""
        delay = self._random.uniform(0.0001, 0.001)
        self._latest_in = max(self._latest_in, self._clock.now + delay)
        self._clock.at(self._latest_in, self.actor, lambda: self._on_command(command))

    def _on_command(self, command: messages.GroupCommand) -> None:
        self._reap()
        self._dispatch(command)

    def _dispatch(self, event: worker_group.Event) -> None:
        events = deque([event])
        while events:
            event = events.popleft()
            effects = self.group.handle(event, now=self._clock.now)
            self.group.check_invariants()
            for effect in effects:
                self._clock.note(self.actor.name, "  ->", effect)
                events.extend(self._execute(effect))
        due = self.group.deadline
        if due is not None:
            self._clock.at(due, self.actor, self._on_deadline)

    def _on_deadline(self) -> None:
        due = self.group.deadline
        if due is not None and due <= self._clock.now:
            self._reap()
            if self.group.deadline == due:
                pids = tuple(process.pid for process in self._alive())
                self._dispatch(worker_group.DeadlineReached(pids=pids))

    def _execute(self, effect: worker_group.Effect) -> list[worker_group.Event]:
        match effect:
            case messages.StartWorkers():
                return [self._spawn(effect)]
            case worker_group.SendSignal(pids=pids, signum=signum):
                for process in self._alive():
                    if process.pid in pids:
                        self._signal(process, signum)
            case messages.KillWorkers():
                self.kill_all()
            case event:
                self._tell(event)
        return []

    def _tell(self, event: messages.GroupEvent) -> None:
        delay = self._random.uniform(0.0001, 0.001)
        self._latest_out = max(self._latest_out, self._clock.now + delay)
        channel = self.actor.name
        self._clock.at(
            self._latest_out,
            None,
            lambda: self._clock.hand(self._agent, channel, lambda: self._on_event(event)),
        )

    # The processes.

    def _spawn(self, start: messages.StartWorkers) -> worker_group.SpawnFinished:
        pids: dict[int, int] = {}
        for worker in start.workers:
            if self._host.fails_to_spawn(self._random):
                failure = messages.WorkerStartFailed(
                    round_id=start.round_id, local_rank=worker.local_rank, message="cannot fork"
                )
                return worker_group.SpawnFinished(pids=pids, failure=failure)
            habits = self._host.habits(self._random)
            process = self._begin(start.round_id, worker.local_rank, habits)
            pids[worker.local_rank] = process.pid
            self._run_program(process)
            if habits.exits_after_s is not None:
                self._clock.after(
                    habits.exits_after_s,
                    None,
                    partial(self.end, process, habits.exit_code),
                )
        return worker_group.SpawnFinished(pids=pids)

    def _run_program(self, process: Process) -> None:
        if self._host.conduct is not None:
            process.program = Program(
                process,
                desk=self._desk,
                conduct=self._host.current_conduct,
                end=partial(self.end, process),
                is_finishing=self._host.is_finishing,
            )
            self._desk.attach(process.program)

    def _begin(self, round_id: int, local_rank: int | None, habits: Habits) -> Process:
        process = Process(
            pid=self._host.next_number(),
            owner=self._agent.name,
            round_id=round_id,
            local_rank=local_rank,
            habits=habits,
        )
        self._host.checker.on_spawn(self._host, process)
        self.processes.append(process)
        return process

    def _alive(self) -> list[Process]:
        return [process for process in self.processes if process.is_alive]

    def _signal(self, process: Process, signal: int) -> None:
        habits = process.habits
        program = process.program
        if signal == SIGKILL:
            self._kill(process)
        elif signal in (SIGSTOP, SIGCONT):
            process.is_stopped = signal == SIGSTOP
            if program is not None and process.is_stopped:
                self._clock.stall(program.actor)
            elif program is not None:
                self._clock.resume(program.actor, program.random)
        elif process.is_stopped:
            assert not self.group.deadline, "a worker is told to stop that can't"
        elif habits.term_s is not None:
            code = -signal if habits.term_code is None else habits.term_code
            self._clock.after(habits.term_s, None, lambda: self.end(process, code))

    def _kill(self, process: Process) -> None:
        if not process.is_doomed:
            process.is_doomed = True
            self._clock.after(process.habits.kill_s, None, lambda: self.end(process, -SIGKILL))

    def kill_all(self) -> None:
        """Send SIGKILL to everything that is alive."""
        for process in self._alive():
            self._kill(process)

    def end(self, process: Process, exit_code: int) -> None:
        """A process ends, by itself or by a signal."""
        if not process.is_alive:
            return
        process.is_alive = False
        if process.program is not None:
            process.program.actor.is_dead = True
        self._clock.note(self._host.name, f"pid {process.pid} ends", exit_code)
        self._host.checker.on_exit(process, exit_code)
        if process.local_rank is not None and process.habits.leaves_child_s is not None:
            child = self._begin(process.round_id, None, Habits())
            self._clock.after(process.habits.leaves_child_s, None, lambda: self.end(child, 0))
        self._ended[process.pid] = exit_code
        self._clock.after(self._random.uniform(0.0001, 0.001), self.actor, self._reap)

    def _reaped(self) -> worker_group.ChildrenReaped:
        ended, self._ended = self._ended, {}
        return worker_group.ChildrenReaped(exit_codes=ended, is_any_left=bool(self._alive()))

    def _reap(self) -> None:
        if self._ended:
            self._dispatch(self._reaped())

    # Its own end.

    def die(self) -> None:
        """The process ends; what it started is killed by whoever adopts it."""
        if not self.actor.is_dead:
            self.actor.is_dead = True
            self.kill_all()
            self._host.forget_when_gone(self)
