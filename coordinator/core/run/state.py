"""Pure. The durable state of a run: the fold of its journal records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice

from coordinator.core.failures.root_cause import TableRoom, insert_most_telling, unhealed
from coordinator.core.inprocess.records import (
    ITERATION_DECISIONS,
    IterationBegan,
    IterationCompleted,
    IterationInterrupted,
    IterationRecord,
    IterationState,
    told,
)
from coordinator.core.model import (
    AgentIdentity,
    FailureRecord,
    Round,
    RunSpec,
    Verdict,
    VerdictCause,
)
from coordinator.core.phases.ranks import assign_seats
from coordinator.core.progress.adaptive_timeouts import LearnedLimit
from coordinator.core.progress.worker_progress import NOWHERE, Standings
from coordinator.core.run.records import (
    AgentAdmitted,
    AgentRemoved,
    EndingStarted,
    FailureRecorded,
    FailuresCounted,
    GroupSucceeded,
    LimitsLearned,
    MembersForgotten,
    Record,
    RoundEnd,
    RoundEnded,
    RoundStarted,
    RunCreated,
    RunEnded,
)
from drumbeat.format import count

# Of one reason in the history; hosts are named in it, and their names are their own.
HISTORY_REASON_CHARACTERS_MAX = 512
# Entries that the message of a broken transition tells.
TRANSITION_HISTORY_MAX = 20
# Addresses of earlier rounds that no round may have again. Workers of a round
# long past are gone; those of the latest ones may still look for their rank 0.
MASTERS_SPENT_MAX = 64


class Phase(StrEnum):
    """What a run is doing.

    ::

            +------------------------+
            v                        |
        GATHERING <--> RUNNING --> ENDING --> ENDED
            |             |                     ^
            +-------------+---------------------+
    """

    GATHERING = "GATHERING"
    """No round; waits for agents."""
    RUNNING = "RUNNING"
    """A round is assigned; waits for it to succeed, fail or lose an agent."""
    ENDING = "ENDING"
    """Failed; waits for workers to stop and for failure records. Goes on after all if
    a participant turns out to have been lost before the failure."""
    ENDED = "ENDED"
    """Has a verdict; waits for nothing."""


TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.GATHERING: frozenset({Phase.RUNNING, Phase.ENDED}),
    Phase.RUNNING: frozenset({Phase.GATHERING, Phase.ENDING, Phase.ENDED}),
    Phase.ENDING: frozenset({Phase.ENDED, Phase.GATHERING}),
    Phase.ENDED: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """One decision on a run, taken at ``at_s`` on the coordinator's clock.

    ``sequence`` counts the decisions of the run from 1; ``decision`` is a fixed phrase;
    ``round_id`` the current or last round then.
    """

    at_s: float
    decision: str
    reason: str
    round_id: int | None
    sequence: int = 0

    def __str__(self) -> str:
        return f"{self.decision}: {self.reason}"


class InvalidTransition(Exception):
    """Our own mistake: a phase was entered that can't follow the present one."""

    def __init__(
        self, run_id: str, source: Phase, target: Phase, history: Sequence[HistoryEntry]
    ) -> None:
        super().__init__(run_id, source, target, history)
        self.run_id, self.source, self.target, self.history = run_id, source, target, history

    def __str__(self) -> str:
        history = "; ".join(str(entry) for entry in self.history[-TRANSITION_HISTORY_MAX:])
        return f"run {self.run_id}: {self.source} can't become {self.target}; history: {history}"


@dataclass(slots=True, kw_only=True)
class RunState:
    """What the coordinator must still know of a run after a restart.

    Invariants: ``round`` is the current or last round; ``succeeded`` are
    participants of it; ``verdict`` is set exactly in ``Phase.ENDED``.
    ``failures_heard`` is the highest sequence accepted from each incarnation:
    records arrive in order, so whatever is not above it was counted before.
    ``founders`` took part in the first round.
    No round below ``rounds_seen`` is started any more.
    ``masters_spent`` are leaders' addresses with the ports of their rounds.
    ``where`` is who was where when the last round failed; empty while one runs.
    ``restarts_returned`` are those of ``restart_count`` that are not charged after all.
    ``limits`` are those learned, ``None`` if nothing ever was.
    ``iterations`` are those of that round; ``iterations_restarted`` counts the
    restarts in process of all rounds. ``given_up`` are participants that were lost
    and without whom the round goes on, ``excused`` these and all others of whose
    workers none takes part in iterations any more: the round does not wait for them.
    ``history`` are the latest ``history_max`` decisions of ``events_count``, oldest first.
    ``failing_cause`` is why a run fails that has not ended yet.
    ``failures_bytes`` is the size of ``failures``. ``generation`` counts the runs that
    had this id one after the other; ``predecessor_ended_at`` is when the one before
    ended, ``ended_at`` when this one did.

    A run that has ended keeps its verdict, history and numbers; ``members`` until none
    of them can come for the verdict any more, and of the seats the first whose agent was
    left: it shows the report.
    """

    run_id: str
    spec: RunSpec
    phase: Phase = Phase.GATHERING
    members: dict[str, AgentIdentity] = field(default_factory=dict)
    round: Round | None = None
    rounds_seen: int = 0
    founders: set[str] = field(default_factory=set)
    restart_count: int = 0
    restarts_returned: int = 0
    succeeded: set[str] = field(default_factory=set)
    failures: list[FailureRecord] = field(default_factory=list)
    failures_heard: dict[str, int] = field(default_factory=dict)
    failures_count: int = 0
    failures_kept_max: int = 1000
    reason: str = "waiting for agents"
    failing_cause: VerdictCause = VerdictCause.WORKER_FAILED
    verdict: Verdict | None = None
    history: list[HistoryEntry] = field(default_factory=list)
    events_count: int = 0
    history_max: int = 1000
    masters_spent: list[tuple[str, int]] = field(default_factory=list)
    where: Standings = NOWHERE
    limits: tuple[LearnedLimit, ...] | None = None
    iterations: IterationState | None = None
    iterations_restarted: int = 0
    given_up: set[str] = field(default_factory=set)
    excused: set[str] = field(default_factory=set)
    failures_bytes: int = 0
    generation: int = 1
    predecessor_ended_at: float | None = None
    ended_at: float | None = None

    @staticmethod
    def created(record: RunCreated) -> RunState:
        """Return the state of a run that has just been created."""
        return RunState(
            run_id=record.run_id,
            spec=record.spec,
            failures_kept_max=record.failures_kept_max,
            history_max=record.history_max,
            generation=record.generation,
            predecessor_ended_at=record.predecessor_ended_at,
        )

    @property
    def key(self) -> str:
        """What tells it from all other runs; the id alone for the first that has it."""
        return key_of(self.run_id, self.generation)

    @property
    def round_id(self) -> int | None:
        """The current or last round's id, ``None`` before the first."""
        return self.round.round_id if self.round else None

    @property
    def next_round_id(self) -> int:
        """The id of the round after that."""
        return max(self.round.round_id + 1 if self.round else 0, self.rounds_seen)

    @property
    def restarts_used(self) -> int:
        """How much of the budget is spent."""
        return self.restart_count - self.restarts_returned

    def group_ranks(self) -> dict[str, int]:
        """Return the group ranks of the current or last round, by incarnation, in order."""
        seats = self.round.seats if self.round else {}
        return {incarnation: seat.group_rank for incarnation, seat in seats.items()}

    def is_awaited(self, incarnation: str) -> bool:
        """Return whether the current round can't succeed without this agent."""
        if self.phase is not Phase.RUNNING or self.round is None:
            return False
        is_done = incarnation in self.succeeded or incarnation in self.excused
        return incarnation in self.round.seats and not is_done

    def is_seated(self, incarnation: str) -> bool:
        """Return whether this agent has a place in the current or last round, not given up."""
        seats = self.round.seats if self.round else {}
        return incarnation in seats and incarnation not in self.given_up

    def accepted(self, record: FailureRecord, sent_at: float) -> FailureRecord:
        """Return a record placed on the coordinator's clock, with its agent's unique name."""
        seat = self.round.seats.get(record.incarnation) if self.round else None
        agent = self.members.get(record.incarnation) if seat is None else seat.agent
        return record.accepted(sent_at=sent_at, name=None if agent is None else agent.name)

    def had_seat(self, incarnation: str) -> bool:
        """Return whether this agent was in the current or last round."""
        return self.round is not None and incarnation in self.round.seats

    def counted_failures(self) -> list[FailureRecord]:
        """Return the failures that no restart in process has healed. Linear."""
        return unhealed(self.failures, self.iterations)

    def lost_participants(self) -> set[str]:
        """Return participants that are no members any more and had not succeeded. Linear."""
        seats = self.round.seats if self.round else {}
        return {i for i in seats if i not in self.members and self.is_awaited(i)}

    def check_invariants(self) -> None:
        """Assert what must hold between records. Linear in agents; for tests."""
        current, spec = self.round, self.spec
        assert (self.verdict is not None) == (self.phase is Phase.ENDED), self.phase
        assert 0 <= self.restarts_used <= spec.restarts_max, "budget overdrawn"
        assert len(self.failures) <= self.failures_kept_max, "too many failure records"
        assert len(self.history) <= self.history_max, "too long a history"
        held = sum(record.size_bytes for record in self.failures)
        assert self.failures_bytes == held, "failure records are not weighed right"
        assert (self.ended_at is not None) == (self.phase is Phase.ENDED), self.ended_at
        if self.phase is not Phase.RUNNING:
            return
        assert current is not None, "running without a round"
        assert self.succeeded <= current.seats.keys(), "success of a stranger"
        assert self.given_up <= self.excused <= current.seats.keys(), "a stranger is excused"
        assert not self.excused & self.succeeded, "excused after it succeeded"
        assert self.iterations is not None, "a round that can't have iterations"
        self.iterations.check_invariants()
        assert spec.agents_min <= len(current.seats) <= spec.agents_max, "size of the round"
        rank = 0
        for group_rank, seat in enumerate(current.seats.values()):
            assert (seat.group_rank, seat.rank_first) == (group_rank, rank), "ranks have holes"
            rank += seat.agent.local_world_size
        assert rank == current.world_size, "world size is not the sum"

    def apply(self, record: Record) -> None:
        """Fold one record in. The only way this state ever changes."""
        match record:
            case RunCreated():
                self.spec = record.spec
            case AgentAdmitted():
                self.members[record.agent.incarnation] = record.agent
                self.rounds_seen = max(self.rounds_seen, record.rounds_seen)
                self._note(record.at_s, "agent admitted", f"{record.agent.name} joined")
            case AgentRemoved():
                self._remove_agent(record)
            case GroupSucceeded():
                self.succeeded.add(record.incarnation)
            case FailureRecorded() | FailuresCounted():
                self._take_failures(record)
            case RoundStarted():
                self._start_round(record)
            case RoundEnded():
                self._enter(Phase.GATHERING, record.reason)
                self.restart_count += record.cause is RoundEnd.WORKER_FAILED
                self.where = record.where
                self._note(record.at_s, "round ended", record.reason)
            case EndingStarted():
                self._enter(Phase.ENDING, record.reason)
                self.where, self.failing_cause = record.where, record.cause
                self._note(record.at_s, "run failing", record.reason)
            case LimitsLearned():
                self.limits = record.limits
            case RunEnded() | MembersForgotten():
                self._end(record)
            case IterationBegan() | IterationInterrupted() | IterationCompleted():
                self._iterate(record)

    def _start_round(self, record: RoundStarted) -> None:
        if self.round is None:
            self.founders = set(record.participants)
        self._enter(Phase.RUNNING, record.reason)
        seats = assign_seats([self.members[incarnation] for incarnation in record.participants])
        self.round = Round(
            round_id=record.round_id,
            seats=seats,
            world_size=sum(seat.agent.local_world_size for seat in seats.values()),
            restart_count=self.restart_count,
            master_addr=record.master_addr,
            master_port=record.master_port,
            reason=record.reason,
            group_world_size=len(seats),
        )
        self.succeeded, self.given_up, self.excused = set(), set(), set()
        self.iterations = _no_iterations(self.round)
        self.where = NOWHERE
        self._spend(self.members[record.participants[0]].address, record.master_port)
        size = count(len(seats), "agent")
        self._note(record.at_s, "round started", f"{size}; {record.closing}")

    def _end(self, record: RunEnded | MembersForgotten) -> None:
        if isinstance(record, MembersForgotten):
            self.members = {}
            return
        self._enter(Phase.ENDED, record.verdict.reason)
        self.verdict = record.verdict
        decision = "run succeeded" if record.verdict.is_success else "run failed"
        self._note(record.at_s, decision, record.verdict.reason)
        self._shrink(record.at_s)

    def _remove_agent(self, record: AgentRemoved) -> None:
        agent = self.members.pop(record.incarnation, None)
        name = agent.name if agent is not None else record.incarnation
        self._note(record.at_s, "agent removed", f"{name}: {record.reason}")
        self.restarts_returned += record.restarts_returned
        if record.is_excused:
            self.given_up.add(record.incarnation)
            self.excused.add(record.incarnation)

    def _iterate(self, record: IterationRecord) -> None:
        """Fold in a record of the round's iterations. Linear in agents when one begins."""
        current, iterations = self.round, self.iterations
        if self.phase is not Phase.RUNNING or current is None or iterations is None:
            raise ValueError(f"{type(record).__name__}, but no round runs: {self.phase}")
        restarted, was_first = iterations.restarted, iterations.iteration < 0
        iterations.apply(record)
        self.iterations_restarted += iterations.restarted - restarted
        if isinstance(record, IterationBegan):
            seats = current.seats.items()
            owners = [i for i, seat in seats for _ in range(seat.agent.local_world_size)]
            present = {owners[worker] for worker in iterations.order}
            self.excused |= current.seats.keys() - present - self.succeeded
            leader = current.seats[owners[iterations.order[0]]].agent
            self._spend(leader.address, record.master_port)
        is_first_try = iterations.iteration == iterations.call_first
        if was_first or not is_first_try or isinstance(record, IterationInterrupted):
            self._note_iteration(record)

    def _note_iteration(self, record: IterationRecord) -> None:
        """Add to the history, of which iterations may have no more than half."""
        self._note(record.at_s, *told(record))
        known = [i for i, e in enumerate(self.history) if e.decision in ITERATION_DECISIONS]
        if len(known) > max(1, self.history_max // 2):
            del self.history[known[0]]

    def _spend(self, address: str, port: int) -> None:
        """Note where a rank 0 listens: no round may get this place again."""
        self.masters_spent = [*self.masters_spent[-MASTERS_SPENT_MAX + 1 :], (address, port)]

    def _take_failures(self, taken: FailureRecorded | FailuresCounted) -> None:
        """Count failures, and keep one if it came whole; an ended run keeps none."""
        self.failures_count += 1 if isinstance(taken, FailureRecorded) else taken.count
        if isinstance(taken, FailuresCounted):
            self._hear(taken.heard)
            return
        record = taken.record
        self._hear({record.incarnation: record.sequence})
        room = TableRoom(count_max=self.failures_kept_max, bytes_max=taken.bytes_max)
        self.failures_bytes = insert_most_telling(
            self.failures, record, room, held=self.failures_bytes
        )

    def _hear(self, heard: dict[str, int]) -> None:
        """Note records that were counted. The order within a batch of the journal is not kept."""
        for incarnation, sequence in heard.items():
            known = self.failures_heard.get(incarnation, 0)
            self.failures_heard[incarnation] = max(known, sequence)

    def _shrink(self, ended_at: float) -> None:
        """Let go of what only a run that lives needs."""
        self.ended_at = ended_at
        self.failures, self.failures_bytes, self.failures_heard = [], 0, {}
        self.founders, self.succeeded, self.given_up, self.excused = set(), set(), set(), set()
        self.masters_spent, self.where = [], NOWHERE
        if self.round is not None:
            left = ((i, seat) for i, seat in self.round.seats.items() if i in self.members)
            self.round = replace(self.round, seats=dict(islice(left, 1)))
        if self.iterations is not None:
            self.iterations = replace(self.iterations, order=[], spec=None)

    def _enter(self, phase: Phase, reason: str) -> None:
        if phase not in TRANSITIONS[self.phase]:
            raise InvalidTransition(self.run_id, self.phase, phase, self.history)
        self.phase = phase
        self.reason = reason

    def _note(self, at_s: float, decision: str, reason: str) -> None:
        if len(reason) > HISTORY_REASON_CHARACTERS_MAX:
            reason = f"{reason[: HISTORY_REASON_CHARACTERS_MAX - 1]}…"
        self.events_count += 1
        self.history.append(
            HistoryEntry(
                sequence=self.events_count,
                at_s=at_s,
                decision=decision,
                reason=reason,
                round_id=self.round_id,
            )
        )
        if len(self.history) > self.history_max:
            del self.history[0]  # moves a few kilobytes of pointers, whatever the run's size


def key_of(run_id: str, generation: int) -> str:
    """Return what tells a run from all others; no run id has this character in it."""
    return run_id if generation == 1 else f"{run_id}#{generation}"


def _no_iterations(current: Round) -> IterationState:
    return IterationState(round_id=current.round_id, world_size=current.world_size)
