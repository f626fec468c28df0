"""Pure. The values the coordinator decides about: specs, agents, rounds, failures, verdicts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from drumbeat.coordinator.core.inprocess.records import InprocessReport
from drumbeat.coordinator.core.run.adaptive_timeouts import Observation
from drumbeat.coordinator.core.run.notice import Leaving
from drumbeat.coordinator.observe.steps.worker_progress import Standing, WorkerProgress
from drumbeat.inprocess import InterruptionKind
from drumbeat.model import (
    Assignment,
    GpuUse,
    GroupBeat,
    HangGroup,
    HangKind,
    Health,
    HostMemory,
    ReplicaGroup,
    Standby,
    Stop,
)

# What an agent reports of a worker that it could not start, with a process id of 0.
EXIT_NOT_STARTED = 127
# Of those its agent ended: who did something wrong before.
_ENDED_FOR_A_FAULT = (
    InterruptionKind.HARD_TIMEOUT,
    InterruptionKind.UNRESPONSIVE,
    InterruptionKind.BARRIER_TIMEOUT,
)


class RunSpec(Struct, frozen=True, kw_only=True):
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
    # A rank is reported whose steps took longer than this times the median of its role, so many
    # of them in a row; 0: none is.
    straggler_factor: float = 0.0
    straggler_steps: int = 0
    # The longest wait before a restart while there is no progress; 0: none.
    restart_delay_max_s: float = 0.0
    restart_window_s: float | None = None  # in which restarts count; None: in all of the run
    no_progress_limit: int = 0  # restarts in a row without a new farthest step; 0: no limit
    restart_rules: tuple[str, ...] = ()
    free_restarts_max: int = 0  # restarts that rules may leave uncharged
    # A host that is blamed for so many rounds in a row is excluded for a while; 0: none is.
    exclude_after: int = 0
    exclude_window_s: float | None = None  # these rounds end within; None: EXCLUDE_WINDOW_S
    exclude_for_s: float | None = None  # None: EXCLUDE_FOR_S
    rank_order: str = ""  # labels by which hosts get neighbouring ranks, or slurm
    # With a size only so many agents with one value of this label are seated, or none of them.
    block_label: str = ""
    block_size: int = 0
    preflight: str = ""  # what all hosts run once before the first round; empty: nothing
    preflight_timeout_s: float = 0.0
    launcher: str = ""  # that counts restarts itself, e.g. torchrun; empty: the run counts them
    replica_group: ReplicaGroup | None = None  # which it is, of a job with several


class AgentIdentity(Struct, frozen=True, kw_only=True):
    """Who an agent is; fixed for the life of its process."""

    incarnation: str
    host: str
    address: str
    role: str
    local_world_size: int
    name: str = ""  # as users see it, else the host's; unique among the members of a run
    has_store: bool = False  # serves torch's store at each port that it holds for a round
    knows_several: bool = False  # coordinators, so it notices soon that one is silent
    can_rehearse: bool = False  # injects faults of rehearsals
    program: str = ""  # what its workers run, without a folder; empty: not told
    arguments_digest: str = ""  # of the program's arguments
    host_id: str = ""  # tells its machine from another of the same name; empty: not told
    placement: tuple[str, ...] = ()  # where its host is, the outermost first
    block: str = ""  # which it belongs to, if whole ones are seated

    def __post_init__(self) -> None:
        if not self.name:
            force_setattr(self, "name", self.host)


class KeptDrain(Struct, frozen=True, kw_only=True):
    """Agents of this name, or on the host of this name, take no part in rounds.

    One with an end is an exclusion: by the coordinator, from one run.
    """

    name: str
    run_id: str = ""  # of this run only; empty: of all
    reason: str = ""
    caller: str = ""
    at_s: float = 0.0
    is_lifted: bool = False  # it holds no more
    calls: tuple[str, ...] = ()  # ids of the latest that changed it
    until_s: float | None = None  # when it ends by itself; None: it does not
    host_id: str = ""  # the only machine of that name that it is for; empty: any

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from others."""
        return self.run_id, self.name

    def holds(self, agent: AgentIdentity) -> bool:
        """Return whether it keeps this agent out of rounds, if that is in such a run."""
        is_named = self.name in (agent.name, agent.host)
        return is_named and not self.is_lifted and self.host_id in ("", agent.host_id)


class Accusation(Struct, frozen=True, kw_only=True):
    """A worker says that a host is bad; ``rank`` is one on that host, ``None``: the worker's."""

    local_rank: int
    rank: int | None = None
    reason: str = ""


class ExpiredLimit(Struct, frozen=True, kw_only=True):
    """A limit that a worker exceeds at present. Durations are seconds.

    ``number`` counts the expired limits of its agent. ``is_held``: the agent ends the worker, or
    signals it, once the coordinator says that evidence was taken.
    """

    number: int
    local_rank: int
    kind: HangKind
    scope: str = ""
    limit_s: float
    elapsed_s: float
    is_held: bool = False


def same_health(one: Health | None, other: Health | None) -> bool:
    """Return whether both say the same, perhaps for another time."""
    if one is None or other is None:
        return one is other
    return one.state is other.state and one.reason == other.reason


class Beat(GroupBeat, frozen=True, kw_only=True):
    """An agent's whole actual state; the latest one wins."""

    workers: tuple[WorkerProgress, ...] = ()  # those that say anything
    observations: tuple[Observation, ...] = ()
    inprocess: InprocessReport | None = None  # None: workers do not restart in process
    failure: FailureRecord | None = None  # of the group, in short: its record may arrive later
    leaving: Leaving | None = None  # its host will go away
    pids: tuple[int, ...] = ()  # of its workers by local rank, 0 if unknown; empty: as before
    expired: tuple[ExpiredLimit, ...] = ()  # limits that workers of the round exceed now
    memory: HostMemory | None = None  # of the workers of the round; None: not known
    collectives_moved_s: float = 0.0  # for how long those of the round have moved, as was seen
    health: Health | None = None  # of the host; None: nothing is checked there
    accusations: tuple[Accusation, ...] = ()  # by workers of the round, all so far
    gpus: GpuUse | None = None  # of the host; None: as before, or not known
    log_dir: str = ""  # that has the output of its workers; empty: it goes to no file

    def repeats(self, before: Beat) -> bool:
        """Return whether it says nothing new but where workers stand and what they use."""
        return (
            self.state is before.state
            and self.round_id == before.round_id
            and self.master_port == before.master_port
            and self.failures_written == before.failures_written
            and self.workers_alive == before.workers_alive
            and self.workers_done == before.workers_done
            and self.is_start_impossible == before.is_start_impossible
            and not self.observations
            and not self.pids
            and self.inprocess is before.inprocess is None
            and self.failure is before.failure is None
            and self.leaving is before.leaving is None
            and self.notice is before.notice is None
            and self.accusations == before.accusations
            and self.preflight == before.preflight
            and not self.expired
            and not before.expired
            and same_health(self.health, before.health)
            and self.log_dir == before.log_dir
            and self.fault is before.fault is None
        )

    def memory_in(self, round_id: int) -> HostMemory | None:
        """Return the memory of the workers of this round; ``None`` if it is not known."""
        return self.memory if self.round_id == round_id else None

    def compared(self) -> Beat:
        """Return what the next beat is compared with: the rest was taken in, and may be large."""
        if not (self.observations or self.expired or self.workers):
            return self
        return replace(self, workers=(), observations=(), expired=self.expired[:1])

    def after(self, before: Beat, *, later_s: float = 0.0) -> Beat:
        """Return both as one: what this one does not say anew of the round is as it was.

        It was sent ``later_s`` after the one before.
        """
        if self.round_id != before.round_id:
            return self if before.gpus is None else replace(self, gpus=self.gpus or before.gpus)
        updated = {worker.local_rank for worker in self.workers}
        kept = (
            worker.aged(later_s) for worker in before.workers if worker.local_rank not in updated
        )
        failure = self.failure
        if failure is None and before.failure is not None:
            failure = replace(before.failure, age_s=before.failure.age_s + later_s)
        return replace(
            self,
            workers=(*self.workers, *kept),
            observations=self.observations or before.observations,
            failure=failure,
            pids=self.pids or before.pids,
            gpus=self.gpus or before.gpus,
        )


class Seat(Struct, frozen=True, kw_only=True):
    """One agent's place in a round; all ranks are those of its worker 0."""

    agent: AgentIdentity
    group_rank: int
    rank_first: int
    role_rank_first: int
    role_world_size: int

    def ranks_of(self, local_rank: int) -> WorkerRanks:
        """Return where one of its workers stands."""
        return WorkerRanks(
            rank=self.rank_first + local_rank,
            local_rank=local_rank,
            group_rank=self.group_rank,
            role_rank=self.role_rank_first + local_rank,
            role=self.agent.role,
        )


class Round(Struct, frozen=True, kw_only=True):
    """One membership with ranks. ``seats`` are in group rank order, by incarnation."""

    round_id: int
    seats: dict[str, Seat]
    world_size: int
    restart_count: int
    master_addr: str
    master_port: int
    reason: str
    group_world_size: int = 0
    is_preflight: bool = False

    @property
    def has_store(self) -> bool:
        """Whether torch's store listens there already."""
        return next(iter(self.seats.values())).agent.has_store

    def seats_of(self, ranks: Iterable[int]) -> list[Seat]:
        """Return whose each of these ranks is. Linear in agents."""
        seats = list(self.seats.values())
        return [seats[bisect_right(seats, i, key=lambda seat: seat.rank_first) - 1] for i in ranks]


class WorkerRanks(Struct, frozen=True, kw_only=True):
    """Where a worker stood in its round."""

    rank: int
    local_rank: int
    group_rank: int
    role_rank: int
    role: str


class Hang(Struct, frozen=True, kw_only=True):
    """Why an agent ended a worker, and what it saw of it before. Durations are seconds."""

    kind: HangKind
    scope: str = ""
    limit_s: float
    elapsed_s: float
    progress: WorkerProgress | None = None
    stacks: str = ""
    evidence: str = ""


class FailureRecord(Struct, frozen=True, kw_only=True):
    """One worker's failure, identified by ``(incarnation, sequence)``."""

    incarnation: str
    sequence: int
    round_id: int
    host: str
    worker: WorkerRanks
    age_s: float = 0.0  # how long before its arrival it happened, until it is accepted
    happened_at: float = 0.0  # on the coordinator's clock, from then on
    pid: int = 0
    exit_code: int = 0
    signal_name: str = ""
    message: str = ""
    traceback: str = ""
    stderr_tail: str = ""
    output_files: tuple[str, ...] = ()  # on its host, with all it wrote
    is_stopped_by_agent: bool = False
    explanation: str = ""
    hang: Hang | None = None
    # What it did to an iteration of its round, if it happened in one; its process may live on.
    interruption: InterruptionKind | None = None
    iteration: int = 0
    size_bytes: int = 0  # as a message; counts against the budgets of records
    name: str = ""  # of its agent, empty if that is the host's
    matched_rules: tuple[int, ...] = ()  # restart rules whose pattern matches, from 1
    is_out_of_memory: bool = False  # the kernel ended it for want of memory
    suspect_rank: int | None = None  # whose host its exception accuses

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


class HungRank(Struct, frozen=True, kw_only=True):
    """A rank that causes a hang, with what was seen of it."""

    worker: WorkerRanks
    incarnation: str
    agent: str  # its agent's name
    host: str
    pid: int = 0
    place: str = ""
    stacks: str = ""
    notes: str = ""  # what else was seen of its process, e.g. that it is stopped
    progress: WorkerProgress | None = None
    collective: str = ""  # which collective it has not entered, in words

    def __str__(self) -> str:
        return f"rank {self.worker.rank} on {self.agent}"


class HangDiagnosis(Struct, frozen=True, kw_only=True):
    """Why a round hangs, judged by what all its ranks do at one moment.

    ``causes`` are the ranks for which the others wait, bounded; none if the evidence does not
    tell. ``limit`` is the first that expired. Durations are seconds.
    """

    round_id: int
    summary: str
    limit: ExpiredLimit
    at_s: float = 0.0  # when it was judged, on the coordinator's clock
    since_s: float = 0.0  # from when on nothing moves, on the same clock
    is_held: bool = False  # workers are ended for it
    causes: tuple[HungRank, ...] = ()
    causes_count: int = 0
    groups: tuple[HangGroup, ...] = ()  # the cause first, then the largest; bounded
    groups_count: int = 0
    is_over: bool = False  # the workers went on
    collective: str = ""  # which ranks wait in which collective, in words


class FailureReport(Struct, frozen=True, kw_only=True):
    """What failed in a round: the cause first, then the victims; and who was where."""

    root_causes: tuple[FailureRecord, ...]
    victims: tuple[FailureRecord, ...]
    victims_count: int
    world_size: int
    standings: tuple[Standing, ...] = ()
    standings_count: int = 0
    earlier: tuple[str, ...] = ()  # what ended the rounds before, oldest first
    hang: HangDiagnosis | None = None  # what all ranks did, if the round hung


class VerdictCause(StrEnum):
    """Why a run ended. The values are those of the protocol."""

    SUCCEEDED = "SUCCEEDED"
    WORKER_FAILED = "WORKER_FAILED"
    START_IMPOSSIBLE = "START_IMPOSSIBLE"
    AGENTS_MISSING = "AGENTS_MISSING"
    PORT_MISSING = "PORT_MISSING"
    SUPERSEDED = "SUPERSEDED"
    INTERNAL = "INTERNAL"
    STOPPED = "STOPPED"
    FAILED_BY_RULE = "FAILED_BY_RULE"
    NO_PROGRESS = "NO_PROGRESS"
    GROUPS_MISSING = "GROUPS_MISSING"


class Verdict(Struct, frozen=True, kw_only=True):
    """How a run ended."""

    cause: VerdictCause
    reason: str
    restart_count: int
    round_id: int | None
    report: FailureReport | None = None
    goodput: str = ""  # what its time went into, in a line

    @property
    def is_success(self) -> bool:
        """Whether all workers that were waited for exited with 0."""
        return self.cause is VerdictCause.SUCCEEDED


class Release(Struct, frozen=True, kw_only=True):
    """Desired: end with success; the others train on."""

    reason: str
    is_drained: bool = False  # the operator wants it to leave


class Exit(Struct, frozen=True, kw_only=True):
    """Desired: stop what is left, and end."""

    verdict: Verdict
    generation: int = 1  # by it an agent asks for the whole of a report that was cut on the way
    shows_report: bool = True
    shown_on: str = ""  # the host of one that shows it


Desired = Standby | Assignment | Stop | Exit | Release
