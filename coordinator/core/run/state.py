"""Pure. The durable state of a run: the fold of its journal records."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice

from msgspec.structs import asdict, replace

from drumbeat.coordinator.core.failures.root_cause import insert_most_telling, signature
from drumbeat.coordinator.core.inprocess import records as inprocess
from drumbeat.coordinator.core.model import (
    AgentIdentity,
    FailureRecord,
    HangDiagnosis,
    Round,
    RunSpec,
    Seat,
    Verdict,
    VerdictCause,
)
from drumbeat.coordinator.core.phases.ranks import assign_seats
from drumbeat.coordinator.core.rehearsal.model import Rehearsal, RehearsalNoted
from drumbeat.coordinator.core.restarts.tally import RestartTally
from drumbeat.coordinator.core.run import history
from drumbeat.coordinator.core.run import notice as notices
from drumbeat.coordinator.core.run import records as rec
from drumbeat.coordinator.core.run.adaptive_timeouts import LearnedLimit
from drumbeat.coordinator.core.run.records import CALLER_CHARACTERS_MAX, HistoryEntry
from drumbeat.coordinator.observe.goodput.stretches import Cause, Stretch, StretchEnd
from drumbeat.coordinator.observe.observations import DECISIONS, Observation, Observations
from drumbeat.coordinator.observe.steps.progress import latest
from drumbeat.coordinator.observe.steps.worker_progress import NOWHERE, Standings
from drumbeat.text.format import count

# Entries that the message of a broken transition tells.
TRANSITION_HISTORY_MAX = 20
# Addresses of the latest rounds, which workers that linger may still look for: none has them again.
MASTERS_SPENT_MAX = 64
# Calls to a run whose repetition is recognized: far more than are on their way at once.
CALLS_KNOWN_MAX = 64
# Agents that were told to leave, and are told again if they come back; later they are held.
DRAINED_KNOWN_MAX = 1_000
# Agents of the last round that a run which has ended names.
HOSTS_MAX = 256
# Accusations that are taken in of one round, and obstacles to an exclusion of which was told.
ACCUSATIONS_MAX, OBSTACLES_KNOWN_MAX = 64, 256
# Of what callers do at will, one part in so many of the history at most.
_SHARES = {rec.CallKind.ACCESS_REFUSED: 10, rec.CallKind.NOTE_ADDED: 2}
_FAILED = (rec.RoundEnd.WORKER_FAILED, rec.RoundEnd.AGENT_LOST)


class Phase(StrEnum):
    """What a run is doing."""

    GATHERING = "GATHERING"  # no round; waits for agents
    RUNNING = "RUNNING"  # a round is assigned; waits for it to succeed, fail or lose an agent
    # Failed; waits for workers to stop and for failure records. Goes on after all if
    # a participant turns out to have been lost before the failure.
    ENDING = "ENDING"
    ENDED = "ENDED"  # has a verdict; waits for nothing


_END = {VerdictCause.SUCCEEDED: "run succeeded", VerdictCause.STOPPED: "run stopped"}

TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.GATHERING: frozenset({Phase.RUNNING, Phase.ENDED}),
    Phase.RUNNING: frozenset({Phase.GATHERING, Phase.ENDING, Phase.ENDED}),
    Phase.ENDING: frozenset({Phase.ENDED, Phase.GATHERING}),
    Phase.ENDED: frozenset(),
}


class InvalidTransition(Exception):
    """Our own mistake: a phase was entered that can't follow the present one."""


@dataclass(slots=True, kw_only=True)
class RunState:
    """What the coordinator must still know of a run after a restart.

    A run that has ended keeps its verdict, history and numbers; ``members`` until none of them
    can come for the verdict any more, and of the seats the first left: its agent has the report.
    """

    run_id: str
    spec: RunSpec
    generation: int = 1  # counts the runs that had this id one after the other
    predecessor_ended_at: float | None = None  # when the one before ended
    created_by: str = ""
    created_at: float = 0.0
    labels: dict[str, str] = field(default_factory=dict)  # of its first agent
    failures_kept_max: int = 1000
    history_max: int = 1000
    phase: Phase = Phase.GATHERING
    reason: str = "waiting for agents"
    members: dict[str, AgentIdentity] = field(default_factory=dict)
    rounds_seen: int = 0  # no round below is started any more
    round: Round | None = None  # the current or last one
    founders: set[str] = field(default_factory=set)  # took part in the first round
    succeeded: set[str] = field(default_factory=set)  # participants of the round
    # Participants that were lost and without whom the round goes on; these and all others
    # of whose workers none takes part in iterations any more: the round waits for none.
    given_up: set[str] = field(default_factory=set)
    excused: set[str] = field(default_factory=set)
    iterations: inprocess.IterationState | None = None  # of the round
    is_preflight_over: bool = False
    preflight_restarts: int = 0  # of the restarts, those of the preflight
    left_out: dict[str, str] = field(default_factory=dict)  # by the preflight, and why
    iterations_restarted: int = 0  # in process, in all rounds
    restart_count: int = 0
    restarts_returned: int = 0  # of these, not charged after all
    restarts_peak: int = 0  # the most that were ever charged at once
    restarts: RestartTally = field(default_factory=RestartTally)
    has_saved: bool = False  # all ranks, since the round or its latest iteration began
    masters_spent: list[tuple[str, int]] = field(default_factory=list)  # addresses of ranks 0
    failures: list[FailureRecord] = field(default_factory=list)
    failures_bytes: int = 0
    failures_count: int = 0
    # The highest sequence of each incarnation: records arrive in order, so whatever is not
    # above it was counted before.
    failures_heard: dict[str, int] = field(default_factory=dict)
    failing_cause: VerdictCause = VerdictCause.WORKER_FAILED  # of a run that has not ended yet
    hang: HangDiagnosis | None = None  # the latest, perhaps of an earlier round
    where: Standings = NOWHERE  # when the last round failed; while one runs nowhere
    notice: notices.PendingNotice | None = None  # of the round that runs
    notice_over: notices.PendingNotice | None = None  # the latest of it that has ended
    notices_count: int = 0  # the id of the latest
    limits: tuple[LearnedLimit, ...] | None = None  # None: nothing was ever learned
    history: list[HistoryEntry] = field(default_factory=list)  # the latest, oldest first
    events_count: int = 0
    verdict: Verdict | None = None
    last_hosts: tuple[str, ...] = ()  # agents of the last round, once it has ended
    ended_at: float | None = None
    calls: list[str] = field(default_factory=list)  # ids of the latest that asked for something
    drained: dict[str, str] = field(default_factory=dict)  # incarnations that shall leave, why
    stop_reason: str = ""  # why it shall end; empty: no operator asked for that
    restart_reason: str = ""  # why the round that runs shall end for another; empty as above
    observed: Observations = field(default_factory=Observations)
    # Who may be to blame for the round, and why, beside its root cause; why the round ended, until
    # blame is counted; hosts that were to blame for rounds in a row.
    blamed: dict[str, str] = field(default_factory=dict)
    uncounted: rec.RoundEnd | None = None
    blame_rows: tuple[rec.BlameRow, ...] = ()
    accusations: list[tuple[int, int]] = field(default_factory=list)  # who accused whom in it
    obstacles: list[str] = field(default_factory=list)  # to exclusions, of which was told
    exclusions_count: int = 0
    rehearsal: Rehearsal | None = None  # the latest

    @staticmethod
    def created(record: rec.RunCreated) -> RunState:
        """Return the state of a run that has just been created."""
        return RunState(**asdict(record))

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
    def seats(self) -> dict[str, Seat]:
        """Those of the current or last round, by incarnation, in order of group ranks."""
        return self.round.seats if self.round else {}

    @property
    def restarts_used(self) -> int:
        """How much of the budget is spent."""
        if self.spec.restart_window_s is not None:
            return len(self.restarts.charged_at)
        return self.restart_count - self.restarts_returned - self.restarts.free

    def restarts_used_at(self, now: float) -> int:
        """Return how much of the budget is spent; what is older than its window is not."""
        if (window_s := self.spec.restart_window_s) is None:
            return self.restarts_used
        return len(self.restarts.charged_since(now - window_s))

    @property
    def current_hang(self) -> HangDiagnosis | None:
        """The hang of the round that runs, unless that is over."""
        hang = self.hang
        if hang is None or hang.is_over or self.phase is not Phase.RUNNING:
            return None
        return hang if hang.round_id == self.round_id else None

    def is_rehearsed(self, at_s: float) -> bool:
        """Return whether a fault of a rehearsal explains a failure of the round at this instant."""
        return self.rehearsal is not None and self.rehearsal.covers(self.round_id, at_s)

    def is_killed(self, incarnation: str) -> bool:
        """Return whether a rehearsal has killed this agent."""
        return self.rehearsal is not None and self.rehearsal.kills(incarnation)

    def is_awaited(self, incarnation: str) -> bool:
        """Return whether the current round can't succeed without this agent."""
        if self.phase is not Phase.RUNNING or incarnation not in self.seats:
            return False
        return incarnation not in self.succeeded and incarnation not in self.excused

    def is_seated(self, incarnation: str) -> bool:
        """Return whether this agent has a place in the current or last round, not given up."""
        return incarnation in self.seats and incarnation not in self.given_up

    def accepted(self, record: FailureRecord, sent_at: float) -> FailureRecord:
        """Return a record placed on the coordinator's clock, with its agent's unique name."""
        seat = self.seats.get(record.incarnation)
        agent = self.members.get(record.incarnation) if seat is None else seat.agent
        name = record.name if agent is None else agent.name
        return replace(record, age_s=0.0, happened_at=sent_at - record.age_s, name=name)

    def lost_participants(self) -> set[str]:
        """Return participants that are no members any more and had not succeeded. Linear."""
        return {i for i in self.seats if i not in self.members and self.is_awaited(i)}

    def apply(self, record: rec.Record) -> None:
        """Fold one record in. The only way this state ever changes."""
        if not isinstance(record, Observation):
            self._apply(record)
            self._account(record)
        elif (decision := self.observed.take(record)) is not None:
            self._note(record.at_s, *decision, name=getattr(record, "name", ""))
            # Observations have a part of the history only.
            self._keep_few(DECISIONS, max(1, self.history_max // 10))

    def stretch(self) -> Stretch | None:
        """Return what the decisions so far tell of the time from here on."""
        match self.phase:
            case Phase.GATHERING:
                is_first = self.round is None or self.round.is_preflight
                return Stretch.FORMING if is_first else Stretch.GATHERING
            case Phase.RUNNING if self.round is not None and self.round.is_preflight:
                return Stretch.FORMING  # nothing is trained yet
            case Phase.RUNNING:
                iterations = self.iterations
                is_held_up = (
                    iterations is not None
                    and iterations.phase is inprocess.IterationPhase.INTERRUPTED
                )
                if is_held_up:
                    return Stretch.INTERRUPTED
                return Stretch.ROUND if self.current_hang is None else Stretch.HUNG
            case Phase.ENDING:
                return Stretch.ENDING
        return None

    def check_invariants(self) -> None:
        """Assert what must hold between two records. Linear in agents; for tests."""
        current, spec = self.round, self.spec
        assert (self.verdict is not None) == (self.phase is Phase.ENDED), self.phase
        assert 0 <= self.restarts_used <= spec.restarts_max, "budget overdrawn"
        is_free = bool(spec.launcher) or self.restarts.free <= spec.free_restarts_max
        assert is_free, "free restarts overdrawn"
        assert len(self.failures) <= self.failures_kept_max, "too many failure records"
        assert len(self.history) <= self.history_max, "too long a history"
        held = sum(record.size_bytes for record in self.failures)
        assert self.failures_bytes == held, "failure records are not weighed right"
        assert (self.ended_at is not None) == (self.phase is Phase.ENDED), self.ended_at
        assert len(self.accusations) <= ACCUSATIONS_MAX, "too many accusations"
        assert len(self.obstacles) <= OBSTACLES_KNOWN_MAX, "too many obstacles"
        self.observed.ledger.check_invariants()
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

    def _account(self, record: rec.Record) -> None:
        """Have the time since the last decision accounted for. Journals of before have none."""
        if not (at_s := float(getattr(record, "at_s", 0.0))):
            return
        if self.spec.restart_window_s is not None and self.verdict is None:
            since_s = at_s - self.spec.restart_window_s
            self.restarts.charged_at = self.restarts.charged_since(since_s)
        current = self.round
        is_seated = current is not None and self.phase is not Phase.GATHERING
        hosts = current.group_world_size if current and is_seated else len(self.members)
        cause: Cause | None = None
        match record:
            case rec.RoundEnded() if record.cause is not rec.RoundEnd.PREFLIGHT_OVER:
                cause = Cause(record.cause)
            case rec.EndingStarted():
                is_stopped = record.cause is VerdictCause.STOPPED
                cause = Cause.STOPPED if is_stopped else Cause.WORKER_FAILED
            case inprocess.IterationInterrupted():
                cause = Cause.INTERRUPTED
        iterations, ledger = self.iterations, self.observed.ledger
        has_iterated = iterations is not None and iterations.iteration >= 0
        end, failures = ledger.end, ledger.failures
        ledger.follow(
            at_s,
            self.stretch(),
            hosts=hosts,
            cause=cause,
            known_since_s=self.history[0].at_s if self.history else 0.0,
            place=(self.round_id, iterations.iteration if iterations and has_iterated else None),
        )
        if ledger.failures > failures and self.history:
            self.history[-1] = replace(self.history[-1], is_failure=True)
        if ledger.failures > failures and (ended := end or (cause and StretchEnd(cause=cause))):
            reason = str(getattr(record, "reason", ""))[: history.REASON_CHARACTERS_MAX]
            self.observed.failures.take(ended, at_s, self.round_id, reason)

    def _apply(self, record: rec.Record) -> None:  # noqa: C901, PLR0912 - a case for each
        match record:
            case rec.AgentAdmitted(agent=agent):
                how = "came from a later round" if agent.incarnation in self.members else "joined"
                self.members[agent.incarnation] = agent
                self.rounds_seen = max(self.rounds_seen, record.rounds_seen)
                self._note(record.at_s, history.ADMITTED, f"{agent.name} {how}", name=agent.name)
            case rec.AgentRemoved():
                self._remove_agent(record)
            case rec.GroupSucceeded():
                self.succeeded.add(record.incarnation)
            case rec.FailureRecorded() | rec.FailuresCounted():
                self._take_failures(record)
            case rec.RoundStarted():
                self._start_round(record)
            case rec.RoundEnded() | rec.EndingStarted():
                self._leave_round(record)
            case rec.LimitsLearned():
                self.limits = record.limits
            case rec.HangJudged():
                self.hang = record.hang
                self._note(record.at_s, "hang found", record.hang.summary)
            case rec.HangOver() if self.hang is not None:
                self.hang = replace(self.hang, is_over=True)
                self._note(record.at_s, "hang over", record.reason)
            case rec.CallNoted():
                self._note_call(record)
            case rec.HostNoted():
                self._note_host(record)
            case rec.BlameCounted():
                self.blame_rows, self.uncounted = record.rows, None
            case RehearsalNoted():
                self.rehearsal = record.rehearsal
                if record.decision:
                    self._note(record.at_s, record.decision, record.reason)
            case rec.RunEnded():
                self._end(record.verdict, record.at_s)
            case rec.MembersForgotten():
                self.members = {}
            case _ if isinstance(record, inprocess.IterationRecord):
                self._iterate(record)
            case _ if isinstance(record, notices.NoticeRecord):
                self._take_notice(record)

    def _take_notice(self, record: notices.NoticeRecord) -> None:
        if isinstance(record, notices.NoticeGiven):
            self.notice, self.notices_count = record.notice, record.notice.notice_id
            self._note(record.at_s, "notice given", record.notice.reason)
        elif isinstance(record, notices.StepProposed):
            self.notice = self.notice and replace(self.notice, proposed=record.step)
        elif isinstance(record, notices.StepChosen):
            self.notice = self.notice and replace(self.notice, chosen=record.step, proposed=None)
        else:
            self.notice_over, self.notice = self.notice, None
            self.has_saved = self.has_saved or record.is_saved
            if record.is_saved and (step := self.notice_over and self.notice_over.chosen):
                self.observed.checkpoint = latest(self.observed.checkpoint, (record.at_s, step))
            self._note(record.at_s, "notice over", record.reason)

    def _start_round(self, record: rec.RoundStarted) -> None:
        if self.round is None or self.round.is_preflight:
            self.founders = set(record.participants)
        self._enter(Phase.RUNNING, record.reason)
        self.observed.enter_round(record.at_s, self.round_id)
        seats = assign_seats([self.members[incarnation] for incarnation in record.participants])
        world_size = sum(seat.agent.local_world_size for seat in seats.values())
        self.round = Round(
            round_id=record.round_id,
            seats=seats,
            world_size=world_size,
            restart_count=self.restart_count - self.preflight_restarts,
            master_addr=record.master_addr,
            master_port=record.master_port,
            reason=record.reason,
            group_world_size=len(seats),
            is_preflight=record.is_preflight,
        )
        self.succeeded, self.given_up, self.excused = set(), set(), set()
        self.iterations = inprocess.IterationState(round_id=record.round_id, world_size=world_size)
        self.where, self.restart_reason, self.has_saved = NOWHERE, "", False
        self.restarts.go_on()
        self.blamed, self.accusations, self.uncounted = {}, [], None
        self._spend(self.members[record.participants[0]].address, record.master_port)
        size = count(len(seats), "agent")
        self._note(record.at_s, "round started", f"{size}; {record.closing}")

    def _leave_round(self, record: rec.RoundEnded | rec.EndingStarted) -> None:
        self.where, self.restart_reason = record.where, ""
        self.notice = self.notice_over = None
        self.observed.leave_round(record.at_s)
        if isinstance(record, rec.RoundEnded):
            self._enter(Phase.GATHERING, record.reason)
            is_failure, attempt = record.cause is rec.RoundEnd.WORKER_FAILED, record.attempt
            self.restart_count += is_failure
            if record.is_charged and self.spec.restart_window_s is not None:
                self.restarts.charge(record.at_s)
            self.restarts.go_on()
            if attempt is not None:
                self.restarts.take(attempt, is_failure=is_failure)
            is_preflight = self.round is not None and self.round.is_preflight
            # What tells of no training, or was wanted.
            is_uncounted = is_preflight or record.cause is rec.RoundEnd.REHEARSED
            self.uncounted = None if is_uncounted else record.cause
            self.restarts_peak = max(self.restarts_peak, self.restarts_used)
            if record.cause is rec.RoundEnd.PREFLIGHT_OVER:
                self.is_preflight_over, self.left_out = True, dict(record.left_out)
                self.preflight_restarts = self.restart_count
            self._note(record.at_s, "round ended", record.reason)
        else:
            self._enter(Phase.ENDING, record.reason)
            self.failing_cause = record.cause
            is_stopped = record.cause is VerdictCause.STOPPED
            self._note(record.at_s, "run stopping" if is_stopped else "run failing", record.reason)

    def _end(self, verdict: Verdict, at_s: float) -> None:
        """Take the verdict, and let go of what only a run that lives needs."""
        self._enter(Phase.ENDED, verdict.reason)
        self.observed.leave_round(at_s)
        self.verdict, self.ended_at = verdict, at_s
        self._note(at_s, _END.get(verdict.cause, "run failed"), verdict.reason)
        self.failures, self.failures_bytes, self.failures_heard = [], 0, {}
        self.founders, self.succeeded, self.given_up, self.excused = set(), set(), set(), set()
        self.masters_spent, self.where = [], NOWHERE
        self.blamed, self.blame_rows, self.accusations, self.obstacles = {}, (), [], []
        self.notice = self.notice_over = None
        self.last_hosts = tuple(seat.agent.name for seat in islice(self.seats.values(), HOSTS_MAX))
        if self.round is not None:
            left = ((i, seat) for i, seat in self.seats.items() if i in self.members)
            self.round = replace(self.round, seats=dict(islice(left, 1)))
        if self.iterations is not None:
            self.iterations = dataclasses.replace(self.iterations, order=[], spec=None)

    def _remove_agent(self, record: rec.AgentRemoved) -> None:
        agent = self.members.pop(record.incarnation, None)
        name = agent.name if agent is not None else record.incarnation
        self._note(record.at_s, history.REMOVED, f"{name}: {record.reason}", name=name)
        self.restarts_returned += (returned := record.restarts_returned)
        if returned:
            self.restarts.give_back(returned)
        self.observed.forget(name)
        self.observed.lost_count += record.is_lost
        if record.restarts_returned:  # perhaps its own end made the round fail
            self.uncounted = self.uncounted and rec.RoundEnd.AGENT_LOST
        may_count = self.phase is not Phase.GATHERING or self.uncounted in _FAILED
        if record.is_lost and may_count and record.incarnation in self.seats:
            self.blamed[record.incarnation] = f"its agent was lost: {record.reason}"
        if record.is_drained:
            latest = list(self.drained.items())[-DRAINED_KNOWN_MAX + 1 :]
            self.drained = dict(latest) | {record.incarnation: record.reason}
        if record.is_excused:
            self.given_up.add(record.incarnation)
            self.excused.add(record.incarnation)

    def _iterate(self, record: inprocess.IterationRecord) -> None:
        """Fold in a record of the round's iterations. Linear in agents when one begins."""
        current, iterations = self.round, self.iterations
        if self.phase is not Phase.RUNNING or current is None or iterations is None:
            raise ValueError(f"{type(record).__name__}, but no round runs: {self.phase}")
        if self.hang is not None and not isinstance(record, inprocess.IterationCompleted):
            self.hang = replace(self.hang, is_over=True)  # its workers are called anew
        restarted, was_first = iterations.restarted, iterations.iteration < 0
        iterations.apply(record)
        self.iterations_restarted += iterations.restarted - restarted
        if isinstance(record, inprocess.IterationInterrupted) and record.attempt is not None:
            self.restarts.take(record.attempt, is_failure=True)
            self.has_saved = False
        if isinstance(record, inprocess.IterationBegan):
            self.restarts.go_on()
            seats = current.seats.items()
            owners = [i for i, seat in seats for _ in range(seat.agent.local_world_size)]
            present = {owners[worker] for worker in iterations.order}
            self.excused |= current.seats.keys() - present - self.succeeded
            leader = current.seats[owners[iterations.order[0]]].agent
            self._spend(leader.address, record.master_port)
        is_first_try = iterations.iteration == iterations.call_first
        if was_first or not is_first_try or isinstance(record, inprocess.IterationInterrupted):
            self._note(record.at_s, *inprocess.decision_of(record))
            # Iterations may have no more than half of the history.
            self._keep_few(inprocess.ITERATION_DECISIONS, max(1, self.history_max // 2))

    def _spend(self, address: str, port: int) -> None:
        """Note where a rank 0 listens: no round may get this place again."""
        self.masters_spent = [*self.masters_spent[-MASTERS_SPENT_MAX + 1 :], (address, port)]

    def _take_failures(self, taken: rec.FailureRecorded | rec.FailuresCounted) -> None:
        """Count failures, and keep one if it came whole."""
        if isinstance(taken, rec.FailureRecorded):
            record, number = taken.record, 1
            heard = {record.incarnation: record.sequence}
            if not record.is_stopped_by_agent:
                self.observed.failures.learn(signature(record))
            self.failures_bytes = insert_most_telling(
                self.failures,
                record,
                held=self.failures_bytes,
                count_max=self.failures_kept_max,
                bytes_max=taken.bytes_max,
            )
        else:
            heard, number = taken.heard, taken.count
        self.failures_count += number
        for incarnation, sequence in heard.items():  # in a batch of the journal in any order
            known = self.failures_heard.get(incarnation, 0)
            self.failures_heard[incarnation] = max(known, sequence)

    def _enter(self, phase: Phase, reason: str) -> None:
        if phase not in TRANSITIONS[self.phase]:
            latest = self.history[-TRANSITION_HISTORY_MAX:]
            before = "; ".join(f"{entry.decision}: {entry.reason}" for entry in latest)
            what = f"{self.phase} can't become {phase}"
            raise InvalidTransition(f"run {self.run_id}: {what}; history: {before}")
        self.phase, self.reason = phase, reason

    def _note_call(self, record: rec.CallNoted) -> None:
        """Note what a caller did; of what was refused a part of the history only."""
        reason = record.reason or "no reason is given"
        is_of_agent = record.kind in (rec.CallKind.AGENT_DRAINED, rec.CallKind.AGENT_UNDRAINED)
        name = reason.partition(": ")[0] if is_of_agent else ""
        self._note(record.at_s, record.kind.value, reason, record.caller, name)
        if record.call_id:
            self.calls = [*self.calls[-CALLS_KNOWN_MAX + 1 :], record.call_id]
        if record.kind is rec.CallKind.STOP_ASKED and self.phase is not Phase.ENDED:
            self.stop_reason = self.stop_reason or rec.asked(record)
        elif record.kind is rec.CallKind.RESTART_ASKED and self.phase is Phase.RUNNING:
            self.restart_reason = rec.asked(record)
        elif record.kind is rec.CallKind.RESTART_ASKED:
            self.restarts.go_on()
        if share := _SHARES.get(record.kind):
            self._keep_few({record.kind.value}, max(1, self.history_max // share))

    def _note_host(self, record: rec.HostNoted) -> None:
        self._note(record.at_s, record.kind.value, record.reason)
        self.exclusions_count += record.kind is rec.HostEvent.EXCLUDED
        if record.ranks is not None:
            self.accusations.append(record.ranks)
            self.blamed.setdefault(record.incarnation, record.blame)
            self._keep_few({record.kind.value}, max(1, self.history_max // 10))
        if record.obstacle:
            self.obstacles = [*self.obstacles[-OBSTACLES_KNOWN_MAX + 1 :], record.obstacle]

    def _keep_few(self, decisions: Collection[str], most: int) -> None:
        """Forget the oldest of such decisions if there are more: they push no other out."""
        known = [i for i, entry in enumerate(self.history) if entry.decision in decisions]
        if len(known) > most:
            del self.history[known[0]]

    def _note(
        self, at_s: float, decision: str, reason: str, caller: str = "", name: str = ""
    ) -> None:
        """Add to the history; reasons begin with ``name``, of the agent they are about."""
        self.events_count += 1
        entry = HistoryEntry(
            sequence=self.events_count,
            at_s=at_s,
            decision=decision,
            reason=reason,
            round_id=self.round_id,
            caller=caller[:CALLER_CHARACTERS_MAX],
            names=(name,) if name else (),
        )
        history.add(self.history, entry, self.history_max)


def key_of(run_id: str, generation: int) -> str:
    """Return what tells a run from all others; no run id has this character in it."""
    return run_id if generation == 1 else f"{run_id}#{generation}"


def id_and_generation(key: str) -> tuple[str, int]:
    """Return what a ``RunState.key`` is made of."""
    run_id, _, generation = key.partition("#")
    return run_id, int(generation) if generation.isdecimal() else 1
