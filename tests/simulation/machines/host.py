"""A host: one agent process at a time, around the real core, and what it leaves behind."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from drumbeat.agent.core import effects as fx
from drumbeat.agent.core.agent import BEAT_PHASE_MIN, AgentCore
from drumbeat.agent.core.events import (
    ChecksEnded,
    DeadlineReached,
    Event,
    GpuMemoryFree,
    PortReserved,
    SignalReceived,
    SupervisorDied,
)
from drumbeat.agent.core.model import Failure
from drumbeat.agent.model import messages
from drumbeat.agent.session import convert
from drumbeat.agent.workers.manager import worker_environments
from drumbeat.model import Assignment
from tests.simulation.clock import Actor
from tests.simulation.machines.processes import Habits, Supervisor
from tests.simulation.machines.session import SimSession, Spooled
from tests.simulation.machines.training import Progress, Training
from tests.simulation.machines.wrapped import Conduct, Desk

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from drumbeat.agent.settings.config import AgentConfig
    from tests.simulation.checks.checker import Checker
    from tests.simulation.machines.coordinator import Coordinators


class Host:
    """A machine. Its numbers (ports, pids) are never used twice."""

    def __init__(
        self,
        name: str,
        config: AgentConfig,
        *,
        head: Coordinators[Any],
        checker: Checker,
    ) -> None:
        self.name, self.config = name, config
        self.address = f"10.0.0.{name[1:]}"
        self.head, self.clock, self.checker = head, head.clock, checker
        self.agent: Agent | None = None
        self.supervisors: list[Supervisor] = []
        self.spool: list[Spooled] = []
        self.habits: Callable[[Random], Habits] = lambda _random: Habits()
        self.fails_to_spawn: Callable[[Random], bool] = lambda _random: False
        self.is_newer = self.clock.random(f"version of {name}").random() < 0.2
        self.awaits_gpu_memory = self.clock.random(f"{name} GPUs").random() < 0.3
        self.is_checked = False  # whether health checks run here
        self.problem: Callable[[Random], str] = lambda _random: ""
        self.progress = Progress()
        self.asks = False  # whether its training asks when to save
        self.conduct: Conduct | None = None
        self.is_finishing = False
        self._number = 1000
        self._incarnations = 0

    def next_number(self) -> int:
        """Return a number that this host has not used yet."""
        self._number += 1
        return self._number

    def current_conduct(self) -> Conduct:
        """Return how workers that restart in process behave now."""
        assert self.conduct is not None, "they do not"
        return self.conduct

    @property
    def is_free(self) -> bool:
        """Whether nothing runs here."""
        return self.agent is None and not any(
            process.is_alive for supervisor in self.supervisors for process in supervisor.processes
        )

    def forget_when_gone(self, supervisor: Supervisor) -> None:
        """A dead supervisor's processes count until they are gone."""
        if not any(process.is_alive for process in supervisor.processes):
            self.supervisors.remove(supervisor)
        else:
            self.clock.after(0.5, None, lambda: self.forget_when_gone(supervisor))

    def start_agent(self) -> None:
        """Start an agent process, unless something of an earlier one is still there."""
        if self.is_free:
            self._incarnations += 1
            self.agent = Agent(self, f"{self.name}.{self._incarnations}")
            self.agent.start()

    def crash_agent(self) -> None:
        """Kill the agent; its supervisor ends every worker, its records stay on the disk."""
        if self.agent is not None:
            self.clock.note(self.agent.name, "CRASHES")
            self.agent.end(is_clean=False)

    def finish_workers(self) -> None:
        """Let all workers, those to come included, end well."""
        self.is_finishing = True
        is_wrapped = self.conduct is not None
        self.habits = lambda random: (
            Habits() if is_wrapped else Habits(exits_after_s=random.uniform(0.0, 3.0))
        )
        for supervisor in self.supervisors:
            random = self.clock.random(f"finish {supervisor.actor.name}")
            for process in supervisor.processes:
                if process.program is not None:
                    process.program.finish()
                elif process.is_alive and process.local_rank is not None:
                    delay = random.uniform(0.0, 3.0)
                    self.clock.after(delay, None, partial(supervisor.end, process, 0))

    def signal_agent(self, signum: int) -> None:
        """Send a signal to the agent."""
        agent = self.agent
        if agent is not None:
            event = SignalReceived(signum=signum)
            self.clock.hand(agent.actor, "signal", lambda: agent.submit(event))


class Agent:
    """One life of an agent process: what ``agent.runtime.driver`` does, in virtual time."""

    def __init__(self, host: Host, incarnation: str) -> None:
        self.host, self.name = host, incarnation
        self.clock, self.actor = host.clock, Actor(incarnation)
        self.random = host.clock.random(incarnation)
        config = host.config
        self.core = AgentCore(
            config,
            is_gpu_memory_awaited=host.awaits_gpu_memory,
            has_health_checks=host.is_checked,
        )
        self._health_random = host.clock.random(f"{incarnation} health")
        self.session: SimSession | None = None
        self.term = 0  # of the coordinator that let it in last
        self.supervisor: Supervisor | None = None
        self.finish: fx.Finish | None = None
        self.pending: list[Spooled] = []
        self._desk = Desk(self.clock, self.actor, self.submit, host.checker.iterations)
        self._training = Training(self.clock, self.actor, self.submit, asks=host.asks)
        self._commands: list[messages.GroupCommand] = []
        self._queue: deque[Event] = deque()
        self._is_busy = False
        self._timer: float | None = None

    def start(self) -> None:
        """Begin."""
        self.clock.note(self.name, "STARTS")
        self.pending, self.host.spool = self.host.spool, []
        self._start_supervisor()
        phase = self.clock.random(f"{self.name} beats").uniform(BEAT_PHASE_MIN, 1.0)
        for effect in self.core.start(now=self.clock.now, beat_phase=phase):
            self._execute(effect)

    def submit(self, event: Event) -> None:
        """Hand an event to the core, a moment later and after what is queued already."""
        self._queue.append(event)
        if not self._is_busy:
            self._is_busy = True
            busy_s = 0.05 if self.random.random() < 0.05 else 0.0005
            self.clock.after(self.random.uniform(0.0, busy_s), self.actor, self._work)

    def _work(self) -> None:
        while self._queue and self.finish is None and not self.actor.is_dead:
            self._handle(self._queue.popleft())
        if self.actor.is_dead:
            return
        due = self.core.next_deadline()
        if self.finish is None and due is not None and due <= self.clock.now:
            self._handle(DeadlineReached())
            due = self.core.next_deadline()
            assert due is None or due > self.clock.now, "a deadline stays due"
        self._is_busy = False
        if self.finish is not None:
            self.end(is_clean=True)
        elif due is not None and due != self._timer:
            self._timer = due
            self.clock.at(due, self.actor, lambda: self._on_timer(due))

    def _on_timer(self, due: float) -> None:
        if self._timer == due:
            self._timer = None
            if not self._is_busy:
                self._work()

    def _handle(self, event: Event) -> None:
        if not isinstance(event, DeadlineReached):
            self.clock.note(self.name, "<-", event)
        effects = self.core.handle(event, now=self.clock.now)
        self.core.check_invariants()
        self.host.checker.on_agent_event(self, event)
        for effect in effects:
            if self.actor.is_dead:
                return  # by the effect before
            self.clock.note(self.name, "  ->", effect)
            self._execute(effect)

    def end(self, *, is_clean: bool) -> None:
        """The process ends; after a clean end nothing it started is left."""
        if self.actor.is_dead:
            return
        self.actor.is_dead = True
        self.host.checker.on_agent_end(self, is_clean=is_clean)
        if self.session is not None:
            self.session.close(is_lossy=not is_clean)
        if self.supervisor is not None:
            self.supervisor.die()
        self.host.spool = self.pending
        self.host.agent = None

    def _execute(self, effect: fx.Effect) -> None:  # noqa: C901, PLR0912 - a table
        self.host.checker.on_agent_effect(self, effect)
        match effect:
            case fx.OpenSession():
                if self.session is not None:
                    self.session.close(is_lossy=self.random.random() < 0.5)
                self.session = SimSession(self, effect)
            case fx.SendBeat(beat=beat):
                if self.session is not None:
                    self.session.send_beat(beat)
            case fx.SendGoodbye(reason=reason):
                if self.session is not None:
                    self.session.send_goodbye(reason)
            case fx.ReservePort():
                self.submit(PortReserved(port=self.host.next_number()))
            case fx.StartSupervisor():
                self._commands.clear()
                self._start_supervisor()
            case fx.AwaitGpuMemory():
                event = GpuMemoryFree(note="")
                delay = self.random.uniform(0.0, 3.0)
                self.clock.after(delay, self.actor, lambda: self.submit(event))
            case fx.RunChecks(number=number):
                self._check(number)
            case fx.StartRound(assignment=assignment):
                self._start_workers(assignment)
            case fx.StopWorkers() | fx.KillWorkers() | fx.SignalWorkers():
                self._command(effect)
            case fx.WriteFailure(failure=failure):
                self._write(failure)
            case fx.WorkerOrder():
                self._desk.order(effect)
            case fx.ShowNotice(notice=notice):
                self._training.show(notice)
            case fx.Finish():
                self.finish = effect
            case fx.Crash():
                self.host.crash_agent()
                delay_s = self.random.choice([0.1, 2.0, 10.0])
                self.clock.after(delay_s, None, self.host.start_agent)
            case fx.Tell() | fx.StopChecks():
                pass

    def _check(self, number: int) -> None:
        """Let checks of the host take a moment, or longer than a last call."""
        random = self._health_random
        event = ChecksEnded(number=number, problem=self.host.problem(random))
        duration_s = random.choice([0.01, 0.01, 2.0, 60.0]) * random.random()
        self.clock.after(duration_s, self.actor, lambda: self.submit(event))

    def _write(self, failure: Failure) -> None:
        identity = convert.Identity(incarnation=self.name, host=self.host.name)
        record = convert.failure_message(failure, self.host.config, identity)
        self.pending.append(
            Spooled(incarnation=self.name, happened_at=failure.happened_at, record=record)
        )
        if self.session is not None:
            self.session.send_records()

    # Workers.

    def _start_supervisor(self) -> None:
        def begin() -> None:
            self.supervisor = Supervisor(
                self.host, self._on_supervisor_event, self.actor, self._desk
            )
            self.host.supervisors.append(self.supervisor)
            commands, self._commands = self._commands, []
            for command in commands:
                self.supervisor.send(command)

        self.clock.after(self.random.uniform(0.01, 0.1), self.actor, begin)

    def kill_supervisor(self) -> None:
        """Kill the supervisor; the agent ends what it left, and then knows of it."""
        supervisor = self.supervisor
        if supervisor is None or supervisor.actor.is_dead:
            return
        self.clock.note(self.name, "LOSES ITS SUPERVISOR")
        supervisor.die()

        def end_supervisor() -> None:
            if any(process.is_alive for process in supervisor.processes):
                self.clock.after(0.05, self.actor, end_supervisor)
                return
            self.supervisor = None
            self._commands.clear()
            self.submit(SupervisorDied(ending="was ended by SIGKILL"))

        self.clock.after(self.random.uniform(0.001, 0.05), self.actor, end_supervisor)

    def _command(self, command: messages.GroupCommand) -> None:
        if self.supervisor is None:
            self._commands.append(command)
        else:
            self.supervisor.send(command)

    def _start_workers(self, assignment: Assignment) -> None:
        config = self.host.config
        workers = worker_environments(config, assignment).items()
        self._command(
            messages.StartWorkers(
                round_id=assignment.round_id,
                argv=config.command,
                env={},
                workers=tuple(messages.WorkerStart(local_rank=r, env=env) for r, env in workers),
            )
        )

    def _on_supervisor_event(self, event: messages.GroupEvent) -> None:
        match event:
            case messages.WorkerExited():
                self._desk.gone(event.round_id, event.local_rank)
                if (hang := self.host.progress.hang_of(self, event)) is not None:
                    event = replace(event, hang=hang)
            case messages.WorkersStarted(round_id=round_id):
                self._desk.started(round_id)
            case messages.WorkersUnkilled():
                return  # only logged
        self.submit(event)
