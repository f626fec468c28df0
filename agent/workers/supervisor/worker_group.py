"""Pure. The supervisor's decisions about the processes of one host's worker group.

::

            start                  all spawned
    IDLE ──────────► STARTING ──────────────────► RUNNING
     ▲ ▲ ▲               │ none spawned            │  │
     │ │ └───────────────┴──── nothing left ───────┤  │ stop
     │ │                                           │  ▼
     │ │ nothing left (answers the stop)           │ STOPPING
     │ └────────────────────────────┐              │  │
     │                              │     kill     │  │ deadline, kill, or only
     │ nothing left                 │              ▼  ▼ orphans left
    STUCK ◄──────────────────────── KILLING ◄──────┴──┘
           still there after KILL_WAIT_S; reported every UNKILLED_EVERY_S

"Nothing left" is what the system says when asked to wait for any child: the supervisor adopts
every orphan below it, so without a child there is no descendant either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from typing import ClassVar, TypeAlias

from msgspec import Struct

from drumbeat.agent.model import messages

KILL_WAIT_S = 5.0  # to die of SIGKILL: normally milliseconds, in D state never
UNKILLED_EVERY_S = 10.0  # how often processes that did not die are reported
NO_ROUND = -1  # of an answer to a kill that comes before any round was started
HISTORY_MAX = 32  # inputs remembered for an error message
_SIGKILL = 9


class SpawnFinished(Struct, frozen=True, kw_only=True):
    """What became of a start: the processes by local rank, and why the next one is missing."""

    pids: Mapping[int, int]
    failure: messages.WorkerStartFailed | None = None


class ChildrenReaped(Struct, frozen=True, kw_only=True):
    """All children that had ended were reaped: exit codes by pid, and whether any is left."""

    exit_codes: Mapping[int, int]
    is_any_left: bool


class DeadlineReached(Struct, frozen=True, kw_only=True):
    """The instant of `WorkerGroup.deadline` has come; ``pids`` are all descendants left."""

    pids: tuple[int, ...]


class SendSignal(Struct, frozen=True, kw_only=True):
    """Send a signal to these unreaped workers, or to the process groups they lead."""

    pids: tuple[int, ...]
    signum: int
    is_for_group: bool


Event: TypeAlias = messages.GroupCommand | SpawnFinished | ChildrenReaped | DeadlineReached
"""The agent's commands, and what the system did."""
_COLUMNS: tuple[type[Event], ...] = (
    *(messages.StartWorkers, messages.StopWorkers, messages.KillWorkers, messages.SignalWorkers),
    *(ChildrenReaped, DeadlineReached),
)
"""Of `WorkerGroup.TRANSITIONS`."""

Effect: TypeAlias = messages.StartWorkers | SendSignal | messages.KillWorkers | messages.GroupEvent
"""A start is to be carried out in order up to the first failure, and ends as `SpawnFinished`; a
kill means every descendant that exists now; a report is for the agent."""


class State(Enum):
    """What the group waits for."""

    IDLE = "idle"  # nothing of any round is alive: waits for a start
    STARTING = "starting"  # waits for the result of spawning the workers
    RUNNING = "running"  # processes of the round may be alive: waits for exits and for a stop
    STOPPING = "stopping"  # the workers got a signal: waits for them to end, or for the deadline
    KILLING = "killing"  # everything got SIGKILL: waits until nothing is left, or for the deadline
    STUCK = "stuck"  # some processes outlived SIGKILL: waits for them to go, and reports them


class InvalidTransition(Exception):
    """A mistake of our own; ``history`` has what came before, oldest first: "STATE Event"."""

    def __init__(self, state: str, event: object, history: tuple[str, ...]) -> None:
        super().__init__(f"worker group: no {event!r} in {state}; before: {list(history)}")
        self.history = history


class WorkerGroup:
    """The processes of one host's worker group, over all its rounds.

    Invariant: a round is started only when nothing of an older one is alive.
    """

    def __init__(self) -> None:
        self.state = State.IDLE
        self._round_id = NO_ROUND
        self._spawned = SpawnFinished(pids={})
        self._ranks_alive: dict[int, int] = {}
        self._signal: int | None = None
        self._killed_at = 0.0
        # When `DeadlineReached` is due, in monotonic seconds.
        self.deadline: float | None = None
        self._history: deque[str] = deque(maxlen=HISTORY_MAX)

    def handle(self, event: Event, *, now: float) -> list[Effect]:
        """Take one input at `now` (monotonic seconds) and return what to do, in order.

        Raises `InvalidTransition`, also for a start while an older round's processes are alive.
        """
        handler = self.TRANSITIONS.get((self.state, type(event)))
        is_idle = self.state is State.IDLE
        is_early = isinstance(event, messages.StartWorkers) and event.round_id > self._round_id
        if handler is None or (is_early and not is_idle):
            raise InvalidTransition(self.state.name, event, tuple(self._history))
        self._history.append(f"{self.state.name} {type(event).__name__}")
        match event:
            case messages.StopWorkers(round_id=round_id) if round_id != self._round_id:
                return [messages.WorkersStopped(round_id=round_id)]
            case messages.StartWorkers(round_id=round_id) if round_id < self._round_id + is_idle:
                # Rounds are never reused: this is a late copy, and nothing of its round is alive.
                return [messages.WorkersStopped(round_id=round_id)]
            case messages.SignalWorkers(round_id=round_id) if round_id != self._round_id:
                return []
        return handler(self, event, now)

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself."""
        is_timed = self.state in (State.STOPPING, State.KILLING, State.STUCK)
        assert self.deadline is None or is_timed, f"a deadline in {self.state}"
        if self.state is State.STOPPING:
            assert self.deadline is not None, "a stop without a deadline"
            assert self._ranks_alive, "a stop that waits for no worker"
        if self.state in (State.IDLE, State.STARTING):
            assert not self._ranks_alive, f"workers {self._ranks_alive} are alive in {self.state}"
        for pid, local_rank in self._ranks_alive.items():
            assert self._spawned.pids[local_rank] == pid, (
                f"process {pid} is not of worker {local_rank}"
            )

    def _on_start(self, event: messages.StartWorkers, _now: float) -> list[Effect]:
        self.state = State.STARTING
        self._round_id = event.round_id
        self._signal = None
        return [event]

    def _on_spawned(self, event: SpawnFinished, now: float) -> list[Effect]:
        self._spawned = event
        self._ranks_alive = {pid: local_rank for local_rank, pid in event.pids.items()}
        self.state = State.RUNNING if event.pids else State.IDLE
        return self._report_start(event, now)

    def _report_start(self, _event: Event, _now: float) -> list[Effect]:
        pids = dict(self._spawned.pids)
        return [
            self._spawned.failure or messages.WorkersStarted(round_id=self._round_id, pids=pids)
        ]

    def _on_stop(self, event: messages.StopWorkers, now: float) -> list[Effect]:
        if not self._ranks_alive or event.signum == _SIGKILL:
            # Orphans are not waited for: the worker that could have asked them to end is gone.
            return self._on_kill(event, now)
        deadline = now + event.timeout_s
        self.state = State.STOPPING
        self.deadline = deadline if self.deadline is None else min(self.deadline, deadline)
        if event.signum == self._signal:
            # Many programs take a second SIGTERM as "give up the clean end".
            return []
        self._signal = event.signum
        pids = tuple(self._ranks_alive)
        return [SendSignal(pids=pids, signum=event.signum, is_for_group=True)]

    def _on_kill(self, _event: Event, now: float) -> list[Effect]:
        if self.state is not State.STUCK:
            self._killed_at = now
        self.state = State.KILLING
        self.deadline = now + KILL_WAIT_S
        return [messages.KillWorkers()]

    def _on_signal(self, event: messages.SignalWorkers, _now: float) -> list[Effect]:
        if self.state is State.STOPPING and event.local_rank is not None:
            return []  # A worker that is being stopped gets no second signal for hanging.
        alive = self._ranks_alive.items()
        pids = tuple(pid for pid, rank in alive if event.local_rank in (None, rank))
        effect = SendSignal(pids=pids, signum=event.signum, is_for_group=event.is_for_group)
        return [effect] if pids else []

    def _on_reaped(self, event: ChildrenReaped, now: float) -> list[Effect]:
        # A failed start leaves a SIGCHLD behind, but never a child.
        assert self.state is not State.IDLE or not event.is_any_left, "a child without a round"
        effects: list[Effect] = [
            messages.WorkerExited(
                round_id=self._round_id,
                local_rank=self._ranks_alive.pop(pid),
                pid=pid,
                exit_code=exit_code,
                is_stopped=self.state is not State.RUNNING,
                ended_at=now,
            )
            for pid, exit_code in event.exit_codes.items()
            if pid in self._ranks_alive  # Any other is an adopted orphan.
        ]
        assert event.is_any_left or not self._ranks_alive, "a worker went without an exit"
        match self.state:
            case State.STOPPING | State.KILLING if not event.is_any_left:
                effects.append(messages.WorkersStopped(round_id=self._round_id))
            case State.STOPPING if not self._ranks_alive:
                effects += self._on_kill(event, now)
            case State.KILLING:
                # What a process forked while the others were being killed shows up only now.
                effects.append(messages.KillWorkers())
        if not event.is_any_left:
            self.state, self.deadline = State.IDLE, None
        return effects

    def _on_deadline(self, event: DeadlineReached, now: float) -> list[Effect]:
        if self.deadline is None or now < self.deadline:
            return []
        if self.state is State.STOPPING:
            return self._on_kill(event, now)
        is_known = self.state is State.STUCK
        self.state, self.deadline = State.STUCK, now + UNKILLED_EVERY_S
        if not is_known:
            return [messages.WorkersStopped(round_id=self._round_id, stuck_pids=event.pids)]
        after_s = now - self._killed_at
        return [messages.WorkersUnkilled(round_id=self._round_id, pids=event.pids, after_s=after_s)]

    def _answer(self, _event: Event, _now: float) -> list[Effect]:
        return [messages.WorkersStopped(round_id=self._round_id)]

    def _ignore(self, _event: Event, _now: float) -> list[Effect]:
        return []  # If it was a start, the answer is the `WorkersStopped` that is on its way.

    TRANSITIONS: ClassVar[Mapping[tuple[State, type[Event]], Callable[..., list[Effect]]]] = {
        (State.STARTING, SpawnFinished): _on_spawned
    } | {
        (state, kind): handler
        for state, handlers in {
            State.IDLE: (_on_start, _answer, _answer, _ignore, _on_reaped, None),
            State.RUNNING: (_report_start, _on_stop, _on_kill, _on_signal, _on_reaped, None),
            State.STOPPING: (_ignore, _on_stop, _on_kill, _on_signal, _on_reaped, _on_deadline),
            State.KILLING: (_ignore, _ignore, _ignore, _ignore, _on_reaped, _on_deadline),
            State.STUCK: (_on_kill, _on_kill, _on_kill, _ignore, _on_reaped, _on_deadline),
        }.items()
        for kind, handler in zip(_COLUMNS, handlers, strict=True)
        if handler is not None
    }
    """The whole machine; a pair that is not here raises `InvalidTransition`."""
