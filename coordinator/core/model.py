"""Pure. The values the coordinator decides about: specs, agents, rounds, failures, verdicts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from coordinator.core.inprocess.model import InprocessReport
from coordinator.core.progress.adaptive_timeouts import Observation
from coordinator.core.progress.worker_progress import Standing, WorkerProgress
from drumbeat.inprocess import InterruptionKind

# Far beyond any run or host, and well within what messages and clocks can hold.
DURATION_MAX_S = 1e9

# What an agent reports of a worker that it could not start, with a process id of 0.
EXIT_NOT_STARTED = 127

# Of those its agent ended: who did something wrong before.
_ENDED_FOR_A_FAULT = frozenset(
    {
        InterruptionKind.HARD_TIMEOUT,
        InterruptionKind.UNRESPONSIVE,
        InterruptionKind.BARRIER_TIMEOUT,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """What a run is, as opposed to a host that takes part in it.

    Invariant: ``1 <= agents_min <= agents_max``. Durations are seconds.
    """

    agents_min: int
    agents_max: int
    restarts_max: int = 0
    join_timeout_s: float = 600.0
    last_call_s: float = 30.0
    exit_barrier_timeout_s: float | None = None
    shutdown_timeout_s: float = 30.0
    coordinator_grace_s: float = 600.0
    master_addr: str = ""
    master_port: int = 0

    @property
    def last_call_quiet_s(self) -> float:
        """Silence after the latest arrival that ends the last call early."""
        return self.last_call_s / 10


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentIdentity:
    """Who an agent is; fixed for the life of its process.

    ``name`` is shown to users: the host's, unless it was told otherwise. Among the
    members of a run it is unique.
    """

    incarnation: str
    host: str
    address: str
    role: str
    local_world_size: int
    name: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.host)


class GroupState(StrEnum):
    """What an agent's worker group does. The values are those of the protocol."""

    IDLE = "IDLE"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """An agent's whole actual state; the latest one wins.

    ``round_id`` is the round of ``state``, ``None`` if the agent holds none.
    ``master_port`` is a port it holds for the next round it leads, 0 if none.
    ``is_start_impossible``: the group failed at its start, and the agent never had another.
    ``workers`` and ``observations`` are of the workers of that round, if they say anything;
    ``inprocess`` too, ``None`` if they do not restart in process. ``failure`` is what
    made the group fail, in short: its record may arrive later. ``workers_done`` exited
    with 0 before they were told to stop.
    """

    state: GroupState
    round_id: int | None = None
    master_port: int = 0
    failures_written: int = 0
    workers_alive: int = 0
    is_start_impossible: bool = False
    workers: tuple[WorkerProgress, ...] = ()
    observations: tuple[Observation, ...] = ()
    inprocess: InprocessReport | None = None
    failure: FailureRecord | None = None
    workers_done: int = 0

    @property
    def rounds_seen(self) -> int:
        """A number above every round the agent has held."""
        return 0 if self.round_id is None else self.round_id + 1

    def repeats(self, before: Beat) -> bool:
        """Return whether it says nothing new but where workers stand."""
        return (
            self.state is before.state
            and self.round_id == before.round_id
            and self.master_port == before.master_port
            and self.failures_written == before.failures_written
            and self.workers_alive == before.workers_alive
            and self.is_start_impossible == before.is_start_impossible
            and self.workers_done == before.workers_done
            and not self.observations
            and self.inprocess is before.inprocess is None
            and self.failure is before.failure is None
        )

    def after(self, before: Beat) -> Beat:
        """Return both as one: what this one does not say anew of the round is as it was."""
        if self.round_id != before.round_id:
            return self
        told = {worker.local_rank for worker in self.workers}
        kept = tuple(worker for worker in before.workers if worker.local_rank not in told)
        return replace(
            self,
            workers=self.workers + kept,
            observations=self.observations or before.observations,
            failure=self.failure or before.failure,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One agent's place in a round; all ranks are those of its worker 0."""

    agent: AgentIdentity
    group_rank: int
    rank_first: int
    role_rank_first: int
    role_world_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One membership with ranks. ``seats`` are in group rank order, by incarnation."""

    round_id: int
    seats: dict[str, Seat]
    world_size: int
    restart_count: int
    master_addr: str
    master_port: int
    reason: str
    group_world_size: int = 0

    @property
    def leader(self) -> str:
        """The incarnation with group rank 0."""
        return next(iter(self.seats))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRanks:
    """Where a worker stood in its round."""

    rank: int
    local_rank: int
    group_rank: int
    role_rank: int
    role: str


class HangKind(StrEnum):
    """Which limit a worker broke. The values are those of the protocol."""

    TIMER = "TIMER"
    SECTION = "SECTION"
    STARTUP = "STARTUP"
    RUNTIME = "RUNTIME"
    PROGRESS = "PROGRESS"
    EXIT = "EXIT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """Why an agent ended a worker, and what it saw of it before. Durations are seconds."""

    kind: HangKind
    scope: str = ""
    limit_s: float
    elapsed_s: float
    progress: WorkerProgress | None = None
    stacks: str = ""
    evidence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord:
    """One worker's failure, identified by ``(incarnation, sequence)``.

    ``age_s`` is how long before its arrival it happened. ``happened_at`` is the
    same on the coordinator's clock, set when the record is accepted. ``size_bytes``
    is what it took as a message, and counts against the budgets of records.
    ``name`` is its agent's, empty if that is the host's.
    ``interruption`` is what it did to ``iteration`` of its round, ``None`` if it
    happened in no iteration; its process may live on.
    """

    incarnation: str
    sequence: int
    round_id: int
    host: str
    worker: WorkerRanks
    age_s: float = 0.0
    happened_at: float = 0.0
    pid: int = 0
    exit_code: int = 0
    signal_name: str = ""
    message: str = ""
    traceback: str = ""
    stderr_tail: str = ""
    is_stopped_by_agent: bool = False
    explanation: str = ""
    hang: Hang | None = None
    interruption: InterruptionKind | None = None
    iteration: int = 0
    size_bytes: int = 0
    name: str = ""

    @property
    def agent(self) -> str:
        """The agent's name, as it is shown."""
        return self.name or self.host

    @property
    def is_victim(self) -> bool:
        """Whether it ended only because others had failed.

        One that its agent ended for a hang is none, although its agent may have
        been told to stop the workers before its end.
        """
        is_at_fault = self.hang is not None or self.interruption in _ENDED_FOR_A_FAULT
        return self.is_stopped_by_agent and not is_at_fault

    @property
    def has_never_run(self) -> bool:
        """Whether the worker could not even be started."""
        return self.pid == 0 and self.exit_code == EXIT_NOT_STARTED

    def ending(self) -> str:
        """Say how the worker ended."""
        return self.signal_name or f"exit code {self.exit_code}"

    def accepted(self, *, sent_at: float, name: str | None = None) -> FailureRecord:
        """Return the record placed on the coordinator's clock, with its agent's unique name."""
        happened_at = sent_at - self.age_s
        return replace(self, age_s=0.0, happened_at=happened_at, name=name or self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureReport:
    """What failed in a round: the cause first, then the victims; and who was where."""

    root_causes: tuple[FailureRecord, ...]
    victims: tuple[FailureRecord, ...]
    victims_count: int
    world_size: int
    standings: tuple[Standing, ...] = ()
    standings_count: int = 0
    earlier: tuple[str, ...] = ()
    """What ended the rounds before, oldest first."""


class VerdictCause(StrEnum):
    """Why a run ended. The values are those of the protocol."""

    SUCCEEDED = "SUCCEEDED"
    WORKER_FAILED = "WORKER_FAILED"
    START_IMPOSSIBLE = "START_IMPOSSIBLE"
    AGENTS_MISSING = "AGENTS_MISSING"
    PORT_MISSING = "PORT_MISSING"
    SUPERSEDED = "SUPERSEDED"
    INTERNAL = "INTERNAL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a run ended."""

    cause: VerdictCause
    reason: str
    restart_count: int
    round_id: int | None
    report: FailureReport | None = None

    @property
    def is_success(self) -> bool:
        """Whether all workers that were waited for exited with 0."""
        return self.cause is VerdictCause.SUCCEEDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often agents beat, how long a silence is tolerated, how they come back; seconds."""

    heartbeat_interval_s: float
    lease_s: float
    reconnect_delay_max_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Standby:
    """Desired: hold no workers and stay ready.

    ``agents_wanted`` is 0 if the run waits for no agent. ``time_left_s`` is how long a
    wait still lasts, for display; two states that differ in it alone are the same.
    """

    reason: str
    agents_present: int = 0
    agents_wanted: int = 0
    time_left_s: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Desired: hold the workers of this round, seated like this."""

    seat: Seat
    round: Round = field(compare=False, repr=False)
    round_id: int
    restarts_used: int = field(default=0, compare=False)
    restarts_max: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Desired: stop the workers; the verdict follows."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Desired: end with success; the others train on."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """Desired: stop what is left, and end.

    Long reports are cut on the way; who ``shows_report`` asks for all of it, by the
    run's ``generation``. ``shown_on`` is the host of one that does.
    """

    verdict: Verdict
    generation: int = 1
    shows_report: bool = True
    shown_on: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """What an agent shall do.

    ``master_port_spent`` is a port of this agent that a round has used; if it
    still holds it for the next round, it has to reserve another. 0: none.
    """

    state: Standby | Assignment | Stop | Exit | Release
    master_port_spent: int = 0
