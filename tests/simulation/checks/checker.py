"""What must hold in every world at every instant, checked against a shadow of the journal."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from copy import copy
from itertools import groupby
from typing import TYPE_CHECKING

from drumbeat.agent.core import effects as agent_fx
from drumbeat.agent.core.events import ChecksEnded, DirectiveReceived
from drumbeat.agent.core.model import Exit
from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.inprocess.records import (
    IterationBegan,
    IterationCompleted,
    IterationInterrupted,
)
from drumbeat.coordinator.core.model import AgentIdentity, Release, Round, Verdict
from drumbeat.coordinator.core.model import Exit as CoordinatorExit
from drumbeat.coordinator.core.rehearsal.model import RehearsalNoted
from drumbeat.coordinator.core.run.records import (
    CallKind,
    CallNoted,
    FailureRecorded,
    FailuresCounted,
    MembersForgotten,
    Record,
    RoundEnd,
    RoundEnded,
    RoundStarted,
    RunCreated,
    RunEnded,
)
from drumbeat.coordinator.core.run.state import Phase, RunState
from drumbeat.coordinator.observe.goodput.ledger import SEGMENTS_MAX, Ledger
from drumbeat.coordinator.observe.goodput.stretches import Part
from drumbeat.coordinator.observe.steps.stragglers import StragglerRecord
from drumbeat.model import Assignment
from drumbeat.model import Assignment as CoordinatorAssignment
from tests.simulation.checks.iterations import IterationChecker
from tests.simulation.checks.rehearsals import RehearsalChecker
from tests.simulation.machines.training import is_slow
from tests.support.run_promises import Promises

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drumbeat.agent.core.events import Event
    from drumbeat.inprocess import IterationBegin
    from drumbeat.v1 import failure_pb2
    from tests.simulation.machines.host import Agent, Host
    from tests.simulation.machines.processes import Process
    from tests.simulation.machines.wrapped import Program

# Beginnings of the reasons for which a run may fail.
REASONS = ("round ", "join timeout", "stopped by op")
# How late a coordinator may be that nothing holds up.
LATE_S = 2.0


def _expect_pieces(places: Sequence[object]) -> None:
    assert len([place for place, _ in groupby(places)]) == len(set(places)), f"torn: {places}"


class Listener:
    """Hears of what happens in a world, mostly once the checker has found nothing wrong with it."""

    def on_journaled(self, record: Record) -> None:
        """A record is durable, and folded into the shadow."""

    def on_spawn(self, host: Host, process: Process) -> None:
        """A process begins."""

    def on_exit(self, process: Process, exit_code: int) -> None:
        """A process ends."""

    def on_begun(self, program: Program, begin: IterationBegin) -> None:
        """A worker begins an iteration."""

    def on_started(self, agent: Agent, assignment: Assignment) -> None:
        """An agent starts the workers of a round; nothing of it was checked yet."""


class Checker:
    """Watches a world. Each ``on_…`` raises ``AssertionError`` when a promise is broken."""

    def __init__(self) -> None:
        self.shadow: RunState | None = None
        self.promises = Promises()
        self.listeners: list[Listener] = []
        self.iterations = IterationChecker(self.listeners)
        self.rehearsals = RehearsalChecker()
        self.rounds: dict[int, Round] = {}
        self.counted: set[tuple[str, int]] = set()
        self.summed_up: set[tuple[str, int]] = set()
        self.written: dict[str, list[agent_fx.WriteFailure]] = defaultdict(list)
        self.assigned: dict[tuple[str, int], Assignment] = {}
        self.exit_codes: dict[tuple[str, int, int], int] = {}
        self.spawned = 0
        self.stops = 0
        self.pushes = 0
        self.counts: Counter[str] = Counter()  # of records
        self.finished: dict[str, agent_fx.Finish] = {}
        self.released: set[str] = set()
        self.drained: set[str] = set()  # hosts that take part in no round
        self.calls: set[str] = set()

    # The coordinator.

    def on_journaled(self, record: Record) -> None:
        """A record is on the disk."""
        self._fold(record)
        for listener in self.listeners:
            listener.on_journaled(record)

    def _fold(self, record: Record) -> None:
        self.promises.check_record(record)
        if isinstance(record, RunCreated):
            assert self.shadow is None, "the run was created twice"
            self.shadow = RunState.created(record)
            return
        shadow = self.shadow
        assert shadow is not None, "a record of no run"
        is_after = isinstance(record, MembersForgotten | RehearsalNoted)
        assert shadow.verdict is None or is_after, "after the verdict"
        self.rehearsals.check(shadow, record)
        if isinstance(record, RunEnded):
            self._on_ended(shadow, record.verdict)  # before it lets go of what it decided by
        self._on_planned(shadow, record)
        before = shadow.restart_count
        if isinstance(record, RoundStarted | IterationBegan):
            assert record.at_s >= shadow.restarts.until_s, "it did not wait before the restart"
        if isinstance(record, StragglerRecord):
            self._on_straggler(shadow, record)
            return
        shadow.apply(record)
        shadow.check_invariants()
        self.promises.check_excused(shadow)
        _expect_segments(shadow.observed.ledger)
        assert before <= shadow.restart_count, "restart_count"
        written = sum(len(records) for records in self.written.values())
        assert shadow.failures_count <= written, "failures are counted twice"
        self.counts[type(record).__name__] += 1
        match record:
            case RoundStarted():
                self._on_round(shadow)
            case RoundEnded(cause=cause):
                self.counts[cause] += 1
                is_charged = cause is RoundEnd.WORKER_FAILED
                assert shadow.restart_count == before + is_charged, "what is planned is charged"
                lost, joined = self.counts[RoundEnd.AGENT_LOST], self.counts[RoundEnd.AGENT_JOINED]
                assert lost <= self.counts["AgentRemoved"], "more rounds than losses"
                arrivals = self.counts["AgentAdmitted"] + self.counts["healed"]
                assert joined <= arrivals, "more rounds than arrivals"
            case FailureRecorded(record=failure):
                self._on_failure(failure.incarnation, failure.sequence)
            case FailuresCounted(heard=heard):
                for incarnation, sequence in heard.items():  # of a batch the highest, in order
                    self.summed_up |= {(incarnation, n + 1) for n in range(sequence)}
            case IterationBegan() | IterationInterrupted() | IterationCompleted():
                assert shadow.iterations is not None
                assert shadow.round is not None
                self.iterations.on_journaled(record, shadow.iterations, shadow.round)
            case _:
                pass

    def _on_planned(self, shadow: RunState, record: Record) -> None:
        """Nothing planned is done twice, and a drained host takes part in nothing."""
        match record:
            case CallNoted(call_id=call_id) if call_id:
                assert call_id not in self.calls, "asked once, done twice"
                self.calls.add(call_id)
                self.counts[record.kind] += 1
            case RoundEnded(cause=RoundEnd.RESTART_ASKED):
                restarts = self.counts[RoundEnd.RESTART_ASKED]
                assert restarts < self.counts[CallKind.RESTART_ASKED], "nobody asked for it"
            case RoundStarted(participants=participants):
                hosts = {shadow.members[each].host for each in participants}
                assert not hosts & self.drained, "a drained host takes part"
            case _:
                pass

    def _on_straggler(self, shadow: RunState, record: StragglerRecord) -> None:
        """It is told of one that is slow at times, and nothing else of the run changes by it."""
        assert is_slow(record.straggler.host), "a straggler that never was slow"
        told = ("stragglers", "history", "events_count")
        names = [each.name for each in dataclasses.fields(shadow) if each.name not in told]
        before = [copy(getattr(shadow, name)) for name in names]
        shadow.apply(record)
        shadow.check_invariants()
        assert before == [getattr(shadow, name) for name in names], "a straggler decides nothing"
        self.counts[type(record).__name__] += 1

    def expect_no_notice_after(self, healed_at: float, *, now: float) -> None:
        """Check that a notice is over when its time is, if nothing holds the coordinator up."""
        notice = self.shadow.notice if self.shadow is not None else None
        if notice is not None:
            assert now <= max(notice.until_s, healed_at) + LATE_S, "a notice outlasts its time"

    def _on_failure(self, incarnation: str, sequence: int) -> None:
        key = incarnation, sequence
        assert key not in self.counted, f"failure {key} counted twice"
        self.counted.add(key)
        known = [w.failure.sequence for w in self.written[incarnation]]
        assert sequence in known, f"nobody wrote failure {key}"

    def _on_round(self, shadow: RunState) -> None:
        current = shadow.round
        assert current is not None
        assert current.round_id == len(self.rounds), "round ids have gaps"
        seats = current.seats.values()
        first = 0
        for group_rank, seat in enumerate(seats):
            assert (seat.group_rank, seat.rank_first) == (group_rank, first), "ranks"
            first += seat.agent.local_world_size
        assert first == current.world_size
        roles: dict[str, list[int]] = defaultdict(list)
        for seat in seats:
            size = seat.agent.local_world_size
            roles[seat.agent.role] += [seat.role_rank_first + i for i in range(size)]
        for seat in seats:
            of_role = roles[seat.agent.role]
            assert sorted(of_role) == list(range(seat.role_world_size)), "role ranks"
        assert current.restart_count == shadow.restart_count - shadow.preflight_restarts
        self.counts["rounds of a preflight"] += current.is_preflight
        self._expect_places(shadow, [seat.agent for seat in seats])
        self.rounds[current.round_id] = current

    def _expect_places(self, shadow: RunState, agents: list[AgentIdentity]) -> None:
        """Each place is in one piece, and each block is whole; blocks come before places."""
        size = shadow.spec.block_size
        if size:
            blocks = [agent.block for agent in agents]
            assert set(Counter(blocks).values()) == {size}, f"not whole: {blocks}"
            _expect_pieces(blocks)
            self.counts["rounds of blocks"] += 1
            return
        for depth in range(1, len(agents[0].placement) + 1):
            _expect_pieces([agent.placement[:depth] for agent in agents])
            self.counts["rounds by place"] += len({agent.placement for agent in agents}) > 1

    def _on_ended(self, shadow: RunState, verdict: Verdict) -> None:
        current = shadow.round
        if not verdict.is_success:
            assert verdict.reason.startswith(REASONS), verdict.reason
            return
        assert current is not None, "success without a round"
        done = shadow.succeeded | shadow.excused
        assert shadow.succeeded, "nobody succeeded"
        assert done == current.seats.keys(), "a success is not on the disk"
        participants = self.iterations.on_success(shadow.iterations)
        for incarnation, seat in current.seats.items():
            for local_rank in range(seat.agent.local_world_size):
                worker = incarnation, current.round_id, local_rank
                if participants is not None and worker not in participants:
                    continue  # it left before, and the others went on
                code = self.exit_codes.get((incarnation, current.round_id, local_rank))
                assert code == 0, f"success, but rank {local_rank} of {incarnation}: {code}"

    def on_acknowledged(self, record: failure_pb2.FailureRecord, *, is_kept: bool) -> None:
        """An agent is told that it need not send a record again."""
        key = record.fence.incarnation, record.sequence
        assert not is_kept or key in self.counted, f"record {key} is acknowledged, and nowhere"

    def on_sent(self, effect: fx.Effect) -> None:
        """An effect leaves the coordinator."""
        if not isinstance(effect, fx.Direct):
            return
        self.pushes += 1
        match effect.state:
            case CoordinatorExit(verdict=verdict):
                assert self.shadow is not None
                assert verdict == self.shadow.verdict, "a verdict was guessed"
            case CoordinatorAssignment(round_id=round_id):
                assert round_id in self.rounds, f"round {round_id} is told before it was journaled"
            case Release(is_drained=True):
                assert self.shadow is not None
                assert self.shadow.drained, "made to leave before it was journaled"
            case Release():
                assert self.shadow is not None
                assert self.shadow.succeeded, "released, but nobody has succeeded"

    # Agents.

    def on_agent_event(self, agent: Agent, event: Event) -> None:
        """An agent was told something."""
        if isinstance(event, ChecksEnded) and not event.problem:
            self.counts["healed"] += 1
        if isinstance(event, DirectiveReceived) and isinstance(event.state, Exit):
            state = event.state
            assert self.shadow is not None
            if state.is_drained:
                assert agent.name in self.shadow.drained, "made to leave, but by nobody"
                return
            if state.is_released:
                self._on_released(agent)
                return
            assert self.shadow.verdict is not None, f"{agent.name}: a verdict that nobody gave"
            assert state.is_success == self.shadow.verdict.is_success, "verdicts differ"
            assert state.reason == self.shadow.verdict.reason, "reasons differ"

    def _on_released(self, agent: Agent) -> None:
        assert self.shadow is not None
        latest = max(round_id for name, round_id in self.assigned if name == agent.name)
        size = self.rounds[latest].seats[agent.name].agent.local_world_size
        codes = {self.exit_codes.get((agent.name, latest, rank)) for rank in range(size)}
        assert codes <= {0} or self.shadow.iterations is not None, f"released with {codes}"
        self.released.add(agent.name)

    def on_agent_effect(self, agent: Agent, effect: agent_fx.Effect) -> None:
        """An agent does something."""
        written = self.written[agent.name]
        self.rehearsals.check_effect(agent.name, effect)
        match effect:
            case agent_fx.WriteFailure(failure=failure):
                assert failure.sequence == len(written) + 1, "sequence has a gap"
                written.append(effect)
            case agent_fx.SendBeat(beat=beat) | agent_fx.OpenSession(beat=beat):
                assert beat.failures_written == len(written), "a beat counts other records"
            case agent_fx.StartRound(assignment=assignment):
                self._on_start(agent, assignment)
            case agent_fx.WorkerOrder():
                self.iterations.on_order(agent.name, effect)
            case agent_fx.SignalWorkers():
                self.iterations.on_sent_away(agent.name, effect)
            case agent_fx.StopWorkers():
                self.stops += 1
            case agent_fx.Finish():
                self._on_finish(agent, effect)
            case _:
                pass

    def _on_start(self, agent: Agent, assignment: Assignment) -> None:
        for listener in self.listeners:
            listener.on_started(agent, assignment)
        current = self.rounds[assignment.round_id]
        seat = current.seats[agent.name]
        key = agent.name, assignment.round_id
        assert key not in self.assigned, f"{agent.name} starts round {current.round_id} again"
        self.assigned[key] = assignment
        told = (
            assignment.restart_count,
            assignment.world_size,
            assignment.master_addr,
            assignment.master_port,
            assignment.group_world_size,
            assignment.group_rank,
            assignment.rank_first,
            assignment.role_rank_first,
            assignment.role_world_size,
        )
        assert told == (
            current.restart_count,
            current.world_size,
            current.master_addr,
            current.master_port,
            len(current.seats),
            seat.group_rank,
            seat.rank_first,
            seat.role_rank_first,
            seat.role_world_size,
        ), "an agent's assignment is not the round's"

    def _on_finish(self, agent: Agent, finish: agent_fx.Finish) -> None:
        self.finished[agent.name] = finish
        supervisor = agent.supervisor
        if supervisor is not None and not supervisor.actor.is_dead:
            alive = [p for p in supervisor.processes if p.is_alive and not p.is_doomed]
            assert not alive, f"{agent.name} finishes before pid {alive[0].pid}"
        is_done = agent.name in self.released
        if self.shadow is not None:
            is_done |= agent.name in self.shadow.drained
        if finish.exit_code == 0 and not is_done:
            assert self.shadow is not None
            assert self.shadow.verdict is not None
            assert self.shadow.verdict.is_success, "exit code 0 of a failed run"

    def on_agent_end(self, agent: Agent, *, is_clean: bool) -> None:
        """An agent's process ends."""
        assert is_clean or agent.name not in self.finished

    # Processes.

    def on_spawn(self, host: Host, process: Process) -> None:
        """A process begins."""
        self.spawned += process.local_rank is not None
        for supervisor in host.supervisors:
            for other in supervisor.processes:
                is_older = other.is_alive and other.round_id != process.round_id
                assert not is_older, (
                    f"{host.name}: pid {other.pid} of round {other.round_id} lives while "
                    f"round {process.round_id} starts"
                )
        for listener in self.listeners:
            listener.on_spawn(host, process)

    def on_exit(self, process: Process, exit_code: int) -> None:
        """A process ends."""
        if process.local_rank is not None:
            self.exit_codes[process.owner, process.round_id, process.local_rank] = exit_code
        for listener in self.listeners:
            listener.on_exit(process, exit_code)

    # At rest.

    @property
    def is_ended(self) -> bool:
        """Whether the run has a verdict."""
        return self.shadow is not None and self.shadow.phase is Phase.ENDED

    def uncounted(self, agents: list[Agent]) -> list[tuple[str, int]]:
        """Return the records of these agents that the coordinator does not have."""
        return [
            (agent.name, write.failure.sequence)
            for agent in agents
            for write in self.written[agent.name]
            if (agent.name, write.failure.sequence) not in self.counted | self.summed_up
        ]


def _expect_segments(account: Ledger) -> None:
    """Segments of which none was dropped are the parts of a run."""
    if len(account.segments) == SEGMENTS_MAX:
        return
    times = dict.fromkeys(Part, 0)
    for segment in account.segments:
        times[segment.part] += segment.time
    parts = {part: account.parts[part].run if part in account.parts else 0 for part in Part}
    assert times == parts, "segments are not the parts"
