"""Pure. What hosts say of a round's iterations, what the journal keeps, what it folds into."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from msgspec import Struct

from drumbeat.coordinator.core.inprocess.rank_rules import SHIFT_RANKS, Cut, RankRule
from drumbeat.coordinator.core.restarts.tally import Attempt
from drumbeat.inprocess import HostReport
from drumbeat.text.format import count

# Decisions, as a run's history and its log name them.
BEGAN, INTERRUPTED, COMPLETED = "iteration began", "iteration interrupted", "iteration completed"
ITERATION_DECISIONS = frozenset({BEGAN, INTERRUPTED, COMPLETED})


class InprocessSpec(Struct, frozen=True, kw_only=True):
    """What all workers of a round must agree on. Durations are seconds; 0 of a count: no limit."""

    rules: tuple[RankRule, ...] = (SHIFT_RANKS,)
    world_size_min: int = 0
    active_world_size_min: int = 0
    iterations_max: int = 0
    last_call_wait_s: float = 1.0
    barrier_timeout_s: float = 120.0
    completion_timeout_s: float = 120.0
    needs_first_agent: bool = False


class InprocessReport(HostReport, frozen=True, kw_only=True):
    """A host's report; ``spec`` comes with the first ones of a call."""

    spec: InprocessSpec | None = None


class IterationBegan(Struct, frozen=True, kw_only=True):
    """All workers that take part had entered, and were told to call the function."""

    round_id: int
    iteration: int
    active_world_size: int
    master_addr: str
    master_port: int
    cuts: tuple[Cut, ...] = ()  # of workers that took part before and do no more
    spec: InprocessSpec | None = None  # None: that of the iteration before
    reason: str = ""
    at_s: float = 0.0
    exited: int = 0  # of those cut, who had failed at nothing


class IterationInterrupted(Struct, frozen=True, kw_only=True):
    """The iteration ended early for all."""

    round_id: int
    iteration: int
    reason: str = ""
    at_s: float = 0.0
    attempt: Attempt | None = None  # None: it had not begun, or is of an earlier version


class IterationCompleted(Struct, frozen=True, kw_only=True):
    """All workers that took part have completed the iteration."""

    round_id: int
    iteration: int
    at_s: float = 0.0


IterationRecord = IterationBegan | IterationInterrupted | IterationCompleted


def decision_of(record: IterationRecord) -> tuple[str, str]:
    """Return the name of a decision, and why it was taken."""
    match record:
        case IterationBegan(active_world_size=active):
            what = f"iteration {record.iteration}, called by {count(active, 'worker')}"
            return BEGAN, f"{what}; {record.reason}" if record.reason else what
        case IterationInterrupted():
            return INTERRUPTED, record.reason
        case _:
            return COMPLETED, f"iteration {record.iteration} is complete"


class IterationPhase(StrEnum):
    """What the latest iteration of a round does.

    ::

        NONE ------> RUNNING ------> COMPLETED ------> RUNNING, of the next call
          |           |   ^              |
          v           v   |              v
        INTERRUPTED, an iteration that ran, or one that had not begun yet

    and from INTERRUPTED to COMPLETED when all workers have ended, having done their part.
    """

    NONE = "NONE"  # there was none; waits for nothing
    RUNNING = "RUNNING"  # waits for all to complete it, or for one to be interrupted
    INTERRUPTED = "INTERRUPTED"  # waits for all that are left to enter the next one
    COMPLETED = "COMPLETED"  # all have completed it; waits for nothing


@dataclass(slots=True, kw_only=True)
class IterationState:
    """What must still be known of a round's iterations after a restart of the coordinator."""

    round_id: int
    world_size: int
    iteration: int = -1
    phase: IterationPhase = IterationPhase.NONE
    # Workers of the latest iteration that began, by rank, each as its rank in the round.
    order: list[int] = field(default_factory=list)
    active_world_size: int = 0
    master_addr: str = ""
    master_port: int = 0
    spec: InprocessSpec | None = None  # of the present call; None: none of it began
    call_first: int = 0  # the first iteration of the call
    restarted: int = 0  # iterations that followed an interrupted one
    reason: str = ""
    exited: int = 0  # workers that left the order having failed at nothing
    since_s: float = 0.0  # when it began to run, or to be interrupted, or was completed

    @property
    def next_iteration(self) -> int:
        """The iteration that workers enter next."""
        return self.iteration + 1

    @property
    def workers(self) -> list[int]:
        """Those that take part, by rank: all of the round before the first iteration."""
        return self.order or list(range(self.world_size))

    @property
    def lost(self) -> int:
        """How many workers of the round iterations went on without, because they failed."""
        return self.world_size - len(self.workers) - self.exited

    def apply(self, record: IterationRecord) -> None:
        """Fold one record in. Raises ``ValueError`` for one that can't follow the others."""
        is_running = self.phase is IterationPhase.RUNNING
        is_completed = isinstance(record, IterationCompleted)
        # One that was interrupted is complete if all of its workers have ended and none failed.
        is_over = is_completed and self.phase is IterationPhase.INTERRUPTED and bool(self.order)
        expected = self.iteration if is_running or is_over else self.next_iteration
        is_untimely = isinstance(record, IterationBegan) if is_running else is_completed
        if (record.round_id, record.iteration) != (self.round_id, expected) or (
            is_untimely and not is_over
        ):
            what = f"{type(record).__name__} of iteration {record.iteration}"
            at = f"iteration {self.iteration} of round {self.round_id}, {self.phase}"
            raise ValueError(f"{what} of round {record.round_id} can't follow {at}")
        is_again = isinstance(record, IterationInterrupted)
        if not (is_again and self.phase is IterationPhase.INTERRUPTED):
            self.since_s = record.at_s
        if self.phase in (IterationPhase.NONE, IterationPhase.COMPLETED):
            self.call_first, self.spec = record.iteration, None
        match record:
            case IterationBegan():
                self.restarted += record.iteration > self.call_first
                self.order = self.workers
                for cut in record.cuts:
                    self.order = cut.apply(self.order)
                self.exited += record.exited
                self.active_world_size = record.active_world_size
                self.master_addr, self.master_port = record.master_addr, record.master_port
                self.spec = record.spec or self.spec
                self.phase, self.reason = IterationPhase.RUNNING, record.reason
            case IterationInterrupted():
                self.phase, self.reason = IterationPhase.INTERRUPTED, record.reason
            case IterationCompleted():
                self.phase, self.reason = IterationPhase.COMPLETED, ""
        self.iteration = record.iteration

    def check_invariants(self) -> None:
        """Assert what must hold between records. Linear in workers; for tests."""
        assert (self.iteration < 0) == (self.phase is IterationPhase.NONE), self.phase
        assert len(set(self.order)) == len(self.order), "a worker has two ranks"
        assert set(self.order) <= set(range(self.world_size)), "a worker of another round"
        assert self.active_world_size <= len(self.order), "more active ones than workers"
        if self.phase in (IterationPhase.RUNNING, IterationPhase.COMPLETED):
            assert self.active_world_size > 0, "no worker calls the function"
            assert self.master_port > 0, "no port"
            assert self.spec is not None, "no spec"
            assert self.call_first <= self.iteration, "the call begins after its iteration"
