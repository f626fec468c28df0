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
           still there after KILL_WAIT_S

"Nothing left" is what the system says when asked to wait for any child: the supervisor adopts
every orphan below it, so without a child there is no descendant either.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from agent.workers.supervisor.messages import (
    KillWorkers,
    SignalWorkers,
    StartWorkers,
    StopWorkers,
    SupervisorEvent,
    WorkerExited,
    WorkersStarted,
    WorkersStopped,
    WorkerStartFailed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

KILL_WAIT_S = 5.0
"""How long processes may take to die of SIGKILL; normally milliseconds, in D state never."""

NO_ROUND = -1
"""The round of an answer to a kill that comes before any round was started."""

HISTORY_MAX = 32
"""Inputs remembered for an error message; older ones are forgotten."""

_SIGKILL = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnFinished:
    """What became of a start: the processes by local rank, and why the next one is missing."""

    pids: Mapping[int, int]
    failure: WorkerStartFailed | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildrenReaped:
    """All children that had ended were reaped: exit codes by pid, and whether any is left."""

    exit_codes: Mapping[int, int]
    is_any_left: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DescendantsListed:
    """Result of `ListDescendants`."""

    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineReached:
    """The instant of `WorkerGroup.next_deadline` has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendSignal:
    """Send a signal to these unreaped workers, or to the process groups they lead."""

    pids: tuple[int, ...]
    signum: int
    is_for_group: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KillDescendants:
    """Send SIGKILL to every descendant that exists now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListDescendants:
    """Reap, then find what is left; ends as `DescendantsListed`."""


Event: TypeAlias = (
    StartWorkers
    | StopWorkers
    | KillWorkers
    | SignalWorkers
    | SpawnFinished
    | ChildrenReaped
    | DescendantsListed
    | DeadlineReached
)
"""The agent's commands, and what the system did."""

Effect: TypeAlias = StartWorkers | SendSignal | KillDescendants | ListDescendants | SupervisorEvent
"""A start is to be carried out in order up to the first failure, and ends as `SpawnFinished`;
a report is for the agent."""


class State(Enum):
    """What the group waits for."""

    IDLE = "idle"
    """Nothing of any round is alive: waits for a start."""
    STARTING = "starting"
    """Waits for the result of spawning the workers."""
    RUNNING = "running"
    """Processes of the round may be alive: waits for exits and for a stop."""
    STOPPING = "stopping"
    """The workers got a signal: waits for them to end, or for the deadline."""
    KILLING = "killing"
    """Everything got SIGKILL: waits until nothing is left, or for the deadline."""
    STUCK = "stuck"
    """Some processes outlived SIGKILL and were reported: waits for them to go after all."""


class InvalidTransition(Exception):
    """An input the machine cannot get in its state: a mistake of our own.

    ``history`` has what came before, oldest first: "STATE Event".
    """

    def __init__(self, machine: str, state: str, event: object, history: tuple[str, ...]) -> None:
        super().__init__(machine, state, event, history)
        self.machine = machine
        self.state = state
        self.input = event
        self.history = history

    def __str__(self) -> str:
        return f"{self.machine}: no {self.input!r} in {self.state}; before: {list(self.history)}"


class WorkerGroup:
    """The processes of one host's worker group, over all its rounds.

    Invariant: a round is started only when nothing of an older one is alive.
    """

    def __init__(self) -> None:
        self._state = State.IDLE
        self._round_id = NO_ROUND
        self._pids: dict[int, int] = {}
        self._ranks_alive: dict[int, int] = {}
        self._failure: WorkerStartFailed | None = None
        self._signal: int | None = None
        self._deadline: float | None = None
        self._history: deque[str] = deque(maxlen=HISTORY_MAX)

    @property
    def state(self) -> State:
        """What the group waits for."""
        return self._state

    def handle(self, event: Event, *, now: float) -> list[Effect]:
        """Take one input at `now` (monotonic seconds) and return what to do, in order.

        Raises:
            InvalidTransition: The input is impossible here, such as a start of a new round
                while processes of an older one are alive.
        """
        handler = self.TRANSITIONS.get((self._state, type(event)))
        if handler is None:
            raise self._invalid(event)
        entry = f"{self._state.name} {type(event).__name__}"
        match event:
            case StopWorkers(round_id=round_id) if round_id != self._round_id:
                effects: list[Effect] = [WorkersStopped(round_id=round_id)]
            case StartWorkers(round_id=round_id) if round_id < self._round_id:
                effects = [WorkersStopped(round_id=round_id)]
            case SignalWorkers(round_id=round_id) if round_id != self._round_id:
                effects = []
            case _:
                effects = handler(self, event, now)
        self._history.append(entry)
        return effects

    def next_deadline(self) -> float | None:
        """Return when `DeadlineReached` is due (monotonic seconds), or None."""
        return self._deadline

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself."""
        is_timed = self._state in (State.STOPPING, State.KILLING)
        assert self._deadline is None or is_timed, f"a deadline in {self._state}"
        if self._state is State.STOPPING:
            assert self._deadline is not None, "a stop without a deadline"
            assert self._ranks_alive, "a stop that waits for no worker"
        if self._state in (State.IDLE, State.STARTING):
            assert not self._ranks_alive, f"workers {self._ranks_alive} are alive in {self._state}"
        for pid, local_rank in self._ranks_alive.items():
            assert self._pids[local_rank] == pid, f"process {pid} is not of worker {local_rank}"

    def _on_start(self, event: StartWorkers, _now: float) -> list[Effect]:
        if event.round_id == self._round_id:
            # Rounds are never reused: this is a late copy, and nothing of its round is alive.
            return [WorkersStopped(round_id=event.round_id)]
        self._state = State.STARTING
        self._round_id = event.round_id
        self._pids = {}
        self._failure = None
        self._signal = None
        return [event]

    def _on_start_again(self, event: StartWorkers, now: float) -> list[Effect]:
        if event.round_id > self._round_id:
            raise self._invalid(event)
        match self._state:
            case State.RUNNING:
                return [self._start_report()]
            case State.STUCK:
                return self._enter_killing(now)
            case _:
                return []  # The answer is the WorkersStopped that is on its way.

    def _on_spawned(self, event: SpawnFinished, _now: float) -> list[Effect]:
        self._pids = dict(event.pids)
        self._ranks_alive = {pid: local_rank for local_rank, pid in event.pids.items()}
        self._failure = event.failure
        self._state = State.RUNNING if self._pids else State.IDLE
        return [self._start_report()]

    def _start_report(self) -> Effect:
        if self._failure is not None:
            return self._failure
        return WorkersStarted(round_id=self._round_id, pids=dict(self._pids))

    def _on_stop(self, event: StopWorkers, now: float) -> list[Effect]:
        if not self._ranks_alive or event.signum == _SIGKILL:
            # Orphans are not waited for: the worker that could have asked them to end is gone.
            return self._enter_killing(now)
        deadline = now + event.timeout_s
        self._state = State.STOPPING
        self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)
        if event.signum == self._signal:
            # Many programs take a second SIGTERM as "give up the clean end".
            return []
        self._signal = event.signum
        return [_signal(self._ranks_alive, event.signum, is_for_group=True)]

    def _on_stop_idle(self, _event: Event, _now: float) -> list[Effect]:
        return [WorkersStopped(round_id=self._round_id)]

    def _on_kill(self, _event: Event, now: float) -> list[Effect]:
        return self._enter_killing(now)

    def _on_signal(self, event: SignalWorkers, _now: float) -> list[Effect]:
        pids = [
            pid
            for pid, local_rank in self._ranks_alive.items()
            if event.local_rank in (None, local_rank)
        ]
        if not pids:
            return []
        return [_signal(pids, event.signum, is_for_group=event.is_for_group)]

    def _on_signal_stopping(self, event: SignalWorkers, now: float) -> list[Effect]:
        # A worker that is being stopped gets no second signal for hanging.
        return self._on_signal(event, now) if event.local_rank is None else []

    def _on_reaped_idle(self, event: ChildrenReaped, _now: float) -> list[Effect]:
        # A failed start leaves a SIGCHLD behind, but never a child.
        assert not event.is_any_left, "a child without a round"
        return []

    def _on_reaped(self, event: ChildrenReaped, now: float) -> list[Effect]:
        effects = self._take_exits(event, now, is_stopped=self._state is State.STUCK)
        if not event.is_any_left:
            self._enter_idle()
        return effects

    def _on_reaped_stopping(self, event: ChildrenReaped, now: float) -> list[Effect]:
        effects = self._take_exits(event, now, is_stopped=True)
        if not event.is_any_left:
            return [*effects, *self._finish_stop()]
        if not self._ranks_alive:
            return [*effects, *self._enter_killing(now)]
        return effects

    def _on_reaped_killing(self, event: ChildrenReaped, now: float) -> list[Effect]:
        effects = self._take_exits(event, now, is_stopped=True)
        if not event.is_any_left:
            return [*effects, *self._finish_stop()]
        # What a process forked while the others were being killed shows up only now.
        return [*effects, KillDescendants()]

    def _take_exits(self, event: ChildrenReaped, now: float, *, is_stopped: bool) -> list[Effect]:
        effects: list[Effect] = []
        for pid, exit_code in event.exit_codes.items():
            local_rank = self._ranks_alive.pop(pid, None)
            if local_rank is None:
                continue  # An adopted orphan: no worker of ours.
            effects.append(
                WorkerExited(
                    round_id=self._round_id,
                    local_rank=local_rank,
                    pid=pid,
                    exit_code=exit_code,
                    is_stopped=is_stopped,
                    ended_at=now,
                )
            )
        assert event.is_any_left or not self._ranks_alive, "a worker went without an exit"
        return effects

    def _on_listed(self, event: DescendantsListed, _now: float) -> list[Effect]:
        self._state = State.STUCK
        self._deadline = None
        return [WorkersStopped(round_id=self._round_id, stuck_pids=event.pids)]

    def _on_deadline_stopping(self, _event: DeadlineReached, now: float) -> list[Effect]:
        return self._enter_killing(now) if self._is_due(now) else []

    def _on_deadline_killing(self, _event: DeadlineReached, now: float) -> list[Effect]:
        return [ListDescendants()] if self._is_due(now) else []

    def _ignore(self, _event: Event, _now: float) -> list[Effect]:
        return []

    def _enter_killing(self, now: float) -> list[Effect]:
        self._state = State.KILLING
        self._deadline = now + KILL_WAIT_S
        return [KillDescendants()]

    def _finish_stop(self) -> list[Effect]:
        self._enter_idle()
        return [WorkersStopped(round_id=self._round_id)]

    def _enter_idle(self) -> None:
        self._state = State.IDLE
        self._deadline = None

    def _is_due(self, now: float) -> bool:
        return self._deadline is not None and now >= self._deadline

    def _invalid(self, event: Event) -> InvalidTransition:
        return InvalidTransition("worker group", self._state.name, event, tuple(self._history))

    TRANSITIONS: ClassVar[Mapping[tuple[State, type[Event]], Callable[..., list[Effect]]]] = {
        (State.IDLE, StartWorkers): _on_start,
        (State.IDLE, StopWorkers): _on_stop_idle,
        (State.IDLE, KillWorkers): _on_stop_idle,
        (State.IDLE, SignalWorkers): _ignore,
        (State.IDLE, ChildrenReaped): _on_reaped_idle,
        (State.IDLE, DescendantsListed): _ignore,
        (State.STARTING, SpawnFinished): _on_spawned,
        (State.RUNNING, StartWorkers): _on_start_again,
        (State.RUNNING, StopWorkers): _on_stop,
        (State.RUNNING, KillWorkers): _on_kill,
        (State.RUNNING, SignalWorkers): _on_signal,
        (State.RUNNING, ChildrenReaped): _on_reaped,
        (State.STOPPING, StartWorkers): _on_start_again,
        (State.STOPPING, StopWorkers): _on_stop,
        (State.STOPPING, KillWorkers): _on_kill,
        (State.STOPPING, SignalWorkers): _on_signal_stopping,
        (State.STOPPING, ChildrenReaped): _on_reaped_stopping,
        (State.STOPPING, DeadlineReached): _on_deadline_stopping,
        (State.KILLING, StartWorkers): _on_start_again,
        (State.KILLING, StopWorkers): _ignore,
        (State.KILLING, KillWorkers): _ignore,
        (State.KILLING, SignalWorkers): _ignore,
        (State.KILLING, ChildrenReaped): _on_reaped_killing,
        (State.KILLING, DescendantsListed): _on_listed,
        (State.KILLING, DeadlineReached): _on_deadline_killing,
        (State.STUCK, StartWorkers): _on_start_again,
        (State.STUCK, StopWorkers): _on_kill,
        (State.STUCK, KillWorkers): _on_kill,
        (State.STUCK, SignalWorkers): _ignore,
        (State.STUCK, ChildrenReaped): _on_reaped,
    }
    """The whole machine; a pair that is not here raises `InvalidTransition`."""


def _signal(pids: Iterable[int], signum: int, *, is_for_group: bool) -> SendSignal:
    return SendSignal(pids=tuple(pids), signum=signum, is_for_group=is_for_group)
