"""What a run promises, held against what it journals and tells."""

from typing import Any

from msgspec.structs import replace

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.inprocess.records import (
    IterationBegan,
    IterationCompleted,
    IterationInterrupted,
    IterationRecord,
)
from drumbeat.coordinator.core.membership.drains import Drains
from drumbeat.coordinator.core.model import Exit, Release, Verdict
from drumbeat.coordinator.core.run.adaptive_timeouts import LearnedLimit, LearningRules
from drumbeat.coordinator.core.run.notice import NoticeEnded, NoticeGiven, PendingNotice
from drumbeat.coordinator.core.run.records import (
    AgentAdmitted,
    AgentRemoved,
    EndingStarted,
    FailureRecorded,
    FailuresCounted,
    GroupSucceeded,
    LimitsLearned,
    RoundEnded,
    RoundStarted,
    RunCreated,
    RunEnded,
)
from drumbeat.coordinator.core.run.state import Phase, RunState
from drumbeat.coordinator.observe.steps.stragglers import NAMED_MAX, StragglerFound, StragglerOver
from drumbeat.inprocess import InprocessDirective, IterationBegin, IterationInterrupt
from drumbeat.model import Assignment, Standby, Stop
from tests.support.journal import json_round_trip

# What the assignments of a round's agents do not have in common.
OF_ONE_AGENT: dict[str, Any] = dict.fromkeys(
    (
        "group_rank", "rank_first", "role_rank_first", "role_world_size",
        "restarts_used", "restarts_max",
    ),
    0,
)  # fmt: skip


class Promises:
    """Watches the effects of every event; knows only what was told and journaled before."""

    def __init__(self) -> None:
        self.drained: set[str] = set()
        self.names: dict[str, str] = {}
        self.stragglers: dict[int, str] = {}  # of the round, by rank
        self.notice: PendingNotice | None = None
        self.notices_count = 0
        self.rounds: dict[int, Assignment] = {}  # what all participants are told alike
        self.sizes: dict[str, int] = {}
        self.seats: dict[int, dict[str, tuple[int, int]]] = {}  # group rank, first rank
        self.rounds_seen = 0
        self.masters: set[tuple[str, int]] = set()
        self.has_fixed_port = False  # of rank 0 of every round
        self.succeeded: dict[int, set[str]] = {}
        self.heard: set[tuple[str, int]] = set()
        self.verdict: Verdict | None = None
        self.limits: tuple[LearnedLimit, ...] = ()
        self.restart_count = 0
        self.is_preflight_over, self.left_out = False, set[str]()
        self.agents: dict[str, str] = {}
        self.whose: dict[str, str] = {}
        self.excused: set[str] = set()
        self.given_up: set[str] = set()
        self.iteration = -1
        self.latest: IterationRecord | None = None
        self.begins: dict[tuple[int, str], InprocessDirective] = {}

    def check(self, effects: list[fx.Effect]) -> None:
        for effect in effects:
            match effect:
                case fx.Persist(record=record):
                    self.check_record(record)
                case fx.Direct(session_id=session_id) as desired:
                    self.check_desired(desired.state, self.whose[session_id])
                case fx.TellLimits(limits=limits):
                    self.check_limits(limits)
                case fx.Instruct(session_id=session_id, directive=directive):
                    self.check_directive(session_id, directive)
                case _:
                    pass

    def check_planned(self, state: RunState, drains: Drains) -> None:
        """Check that nothing planned waits for anything but a notice."""
        if state.phase is not Phase.RUNNING or state.notice is not None:
            return
        assert not state.stop_reason, "nothing keeps the run, and it goes on"
        assert not state.restart_reason, "nothing keeps the round, and it goes on"
        kept = [i for i, agent in state.members.items() if drains.find(state.run_id, agent)]
        assert not kept, f"drained, and still there: {kept}"

    def check_notice(self, record: Any) -> None:
        """Check that nothing planned is done while a notice is pending."""
        match record:
            case NoticeGiven(notice=notice) if self.notice is not None:
                assert notice.notice_id == self.notice.notice_id, "two notices at once"
                assert notice.until_s < self.notice.until_s, "more time than was said before"
                self.notice = notice
            case NoticeGiven(notice=notice):
                assert notice.notice_id == self.notices_count + 1, "an id that was skipped, or used"
                self.notice, self.notices_count = notice, notice.notice_id
            case AgentRemoved(incarnation=incarnation, is_drained=True) if self.notice is not None:
                awaited = self.participants - self.excused - self.succeeded[max(self.succeeded)]
                assert incarnation not in awaited, "drained before training could save"
            case RoundEnded(cause="RESTART_ASKED" | "AGENT_JOINED"):
                assert self.notice is None, "a round ended before training could save"
            case NoticeEnded() | RoundEnded() | EndingStarted() | RunEnded():
                self.notice = None
            case _:
                pass

    def check_record(self, record: Any) -> None:
        assert json_round_trip(record) == record, "a record changes on its way through JSON"
        self.drained |= _drained_by(record)
        self.check_straggler(record)
        self.check_notice(record)
        match record:
            case RunCreated(spec=spec):
                self.has_fixed_port = bool(spec.master_port)
            case AgentAdmitted(agent=agent, rounds_seen=rounds_seen):
                assert self.verdict is None, "admitted to an ended run"
                self.rounds_seen = max(self.rounds_seen, rounds_seen)
                self.agents[agent.incarnation] = agent.address
                self.sizes[agent.incarnation] = agent.local_world_size
            case RoundStarted():
                self.check_start(record)
            case AgentRemoved(incarnation=incarnation, is_excused=True):
                assert incarnation in self.participants, "a stranger is excused"
                assert incarnation not in self.succeeded[max(self.succeeded)]
                self.excused.add(incarnation)
                self.given_up.add(incarnation)
            case IterationBegan() | IterationInterrupted() | IterationCompleted():
                self.check_iteration(record)
            case GroupSucceeded(round_id=round_id):
                assert record.incarnation in self.participants
                assert record.incarnation not in self.excused, "excused, and counted"
                self.succeeded[round_id].add(record.incarnation)
            case RoundEnded():
                self.check_round_end(record)
            case FailureRecorded() | FailuresCounted():
                self.check_failures(record)
            case LimitsLearned(limits=limits):
                assert limits != self.limits, "what was journaled before"
                self.limits = limits
            case RunEnded(verdict=verdict):
                assert self.verdict is None, "two verdicts"
                self.verdict = verdict
                if verdict.is_success:
                    done = self.succeeded[max(self.succeeded)]
                    assert done, "a success of nobody"
                    assert done | self.excused == self.participants
            case _:
                pass

    def check_round_end(self, record: RoundEnded) -> None:
        self.restart_count += record.cause == "WORKER_FAILED"
        if record.cause == "PREFLIGHT_OVER":
            assert not self.is_preflight_over, "a second preflight"
            self.is_preflight_over, self.left_out = True, set(record.left_out)
            self.restart_count = 0  # training sees none of the preflight

    def check_start(self, record: RoundStarted) -> None:
        round_id = record.round_id
        latest = max(self.succeeded, default=-1)
        # Or to above what an agent says it has held: numbers are never used again.
        assert round_id == max(latest + 1, self.rounds_seen), "a round id was skipped"
        self.succeeded[round_id] = set()
        master = (self.agents[record.participants[0]], record.master_port)
        is_fresh = self.has_fixed_port or master not in self.masters
        assert is_fresh, "an address of an earlier round"
        assert record.master_port > 0
        self.masters.add(master)
        self.participants = set(record.participants)
        self.excused, self.given_up = set(), set()
        self.iteration, self.latest, self.begins = -1, None, {}
        assert len(self.participants) == len(record.participants)
        assert not self.left_out & self.participants, "one that was left out takes part"
        assert not (record.is_preflight and self.is_preflight_over), "a preflight amid training"

    def check_straggler(self, record: Any) -> None:
        """Check that who is slow is told once, and is over once."""
        match record:
            case RoundEnded() | EndingStarted() | RunEnded():
                self.stragglers = {}
            case AgentAdmitted(agent=agent):
                self.names[agent.incarnation] = agent.name
            case AgentRemoved(incarnation=incarnation):
                gone, left = self.names[incarnation], self.stragglers.items()
                self.stragglers = {rank: name for rank, name in left if name != gone}
            case StragglerFound(straggler=found):
                assert found.rank not in self.stragglers, "found twice"
                assert found.rank < self.world_size()
                self.stragglers[found.rank] = found.name
                assert len(self.stragglers) <= NAMED_MAX, "more than are named at once"
            case StragglerOver(straggler=over):
                assert self.stragglers.pop(over.rank, None), "over, and was none"
            case _:
                pass

    def check_failures(self, taken: FailureRecorded | FailuresCounted) -> None:
        assert self.verdict is None, "a failure of an ended run is journaled"
        if isinstance(taken, FailuresCounted):
            heard = set(taken.heard.items())
        else:
            heard = {(taken.record.incarnation, taken.record.sequence)}
        assert not heard & self.heard, "a failure counted twice"
        self.heard |= heard

    def check_iteration(self, record: IterationRecord) -> None:
        assert self.verdict is None, "an iteration after the verdict"
        assert record.round_id == max(self.succeeded), "an iteration of another round"
        is_running = isinstance(self.latest, IterationBegan)
        is_next = isinstance(record, IterationBegan) or not is_running
        assert record.iteration == self.iteration + is_next, "iterations rise by one"
        match record:
            case IterationBegan():
                assert not is_running, "two iterations at once"
                master = (record.master_addr, record.master_port)
                assert master not in self.masters, "an address of an earlier iteration"
                assert record.master_port > 0
                self.masters.add(master)
            case IterationCompleted():
                assert is_running, "complete without an iteration"
            case _:
                pass
        self.iteration, self.latest = record.iteration, record

    def check_excused(self, state: RunState) -> None:
        """Whoever is excused was lost in an iteration, or has no worker in it."""
        if state.round is None or state.iterations is None or state.verdict is not None:
            return
        assert state.given_up == self.given_up, "given up without a word"
        self.excused = set(state.excused)
        for incarnation in state.excused - state.given_up:
            seat = state.round.seats[incarnation]
            size = seat.agent.local_world_size
            workers = set(range(seat.rank_first, seat.rank_first + size))
            assert workers.isdisjoint(state.iterations.order), "excused, but takes part"

    def check_directive(self, session_id: str, directive: InprocessDirective) -> None:
        assert self.latest is not None, "told before it was journaled"
        assert (directive.round_id, directive.iteration) == (
            self.latest.round_id,
            self.iteration,
        )
        match directive.kind:
            case IterationBegin() as begin:
                assert isinstance(self.latest, IterationBegan)
                assert begin.master_port == self.latest.master_port
                key = (self.iteration, self.whose[session_id])
                assert self.begins.setdefault(key, directive) == directive, "two begins differ"
                assert key[1] not in self.given_up, "told, although it was given up"
            case IterationInterrupt():
                assert isinstance(self.latest, IterationInterrupted)
            case _:
                assert isinstance(self.latest, IterationCompleted)

    def check_desired(
        self, state: Standby | Assignment | Stop | Exit | Release, incarnation: str
    ) -> None:
        match state:
            case Assignment(round_id=round_id):
                assert self.verdict is None, "an assignment after the verdict"
                common = replace(state, **OF_ONE_AGENT)
                known = self.rounds.setdefault(round_id, common)
                assert known == common, "two assignments of one round differ"
                assert round_id == max(self.succeeded), "told before it was journaled"
                assert incarnation in self.participants
                assert incarnation not in self.given_up, "a place that was given up"
                assert state.restart_count == self.restart_count
                self.check_seat(state, incarnation)
            case Exit(verdict=verdict):
                assert verdict == self.verdict, "a verdict that was not journaled"
            case Release(is_drained=True):
                assert incarnation in self.drained, "made to leave before it was journaled"
            case Release():
                assert self.verdict is None, "released from an ended run"
                done = self.succeeded[max(self.succeeded)]
                assert incarnation in done, "released, but its success is not journaled"
            case _:
                assert self.verdict is None, "no verdict for an agent of an ended run"

    def check_limits(self, limits: tuple[LearnedLimit, ...]) -> None:
        assert limits == self.limits, "limits that were not journaled"
        assert all(limit.limit_s >= LearningRules().limit_min_s for limit in limits)

    def world_size(self) -> int:
        return sum(self.sizes[who] for who in self.participants)

    def check_seat(self, own: Assignment, incarnation: str) -> None:
        seats = self.seats.setdefault(own.round_id, {})
        seat = own.group_rank, own.rank_first
        assert seats.setdefault(incarnation, seat) == seat, "a seat changed within its round"
        assert own.group_world_size == len(self.participants)
        assert own.world_size == self.world_size()
        rank = 0
        if len(seats) == len(self.participants):
            for number, (who, seat) in enumerate(sorted(seats.items(), key=lambda row: row[1])):
                assert seat == (number, rank), "ranks overlap, or leave a gap"
                rank += self.sizes[who]


def _drained_by(record: Any) -> set[str]:
    is_drain = isinstance(record, AgentRemoved) and record.is_drained
    return {record.incarnation} if is_drain else set()
