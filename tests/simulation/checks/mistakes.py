"""Deliberate mistakes in the product: what the simulation has to find, one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from drumbeat.agent.core.agent import AgentCore
from drumbeat.agent.core.events import DirectiveReceived, SessionLost
from drumbeat.agent.core.inprocess.iterations import HostIterations
from drumbeat.agent.core.model import Exit
from drumbeat.agent.core.round_workers import RoundWorkers
from drumbeat.coordinator.core.effects import Kept
from drumbeat.coordinator.core.failures.verdict import SilentAtFailure, is_wanted
from drumbeat.coordinator.core.inprocess.iterations import Iterations
from drumbeat.coordinator.core.inprocess.restarts import InProcessRestarts
from drumbeat.coordinator.core.inprocess.roster import Roster
from drumbeat.coordinator.core.membership import exclusion
from drumbeat.coordinator.core.membership import leases as membership
from drumbeat.coordinator.core.membership.drains import Drains
from drumbeat.coordinator.core.membership.leases import RunMembers
from drumbeat.coordinator.core.model import Beat, VerdictCause
from drumbeat.coordinator.core.phases import ranks
from drumbeat.coordinator.core.phases.notices import Notices
from drumbeat.coordinator.core.phases.phase import RunContext
from drumbeat.coordinator.core.phases.running import Running
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.rehearsal.machine import Rehearsals
from drumbeat.coordinator.core.run.records import GroupSucceeded
from drumbeat.coordinator.core.run.run import Run
from drumbeat.coordinator.core.run.state import Phase, RunState
from drumbeat.coordinator.observe.goodput.meter import Meter
from drumbeat.inprocess import InprocessStep
from drumbeat.model import GroupState
from tests.simulation import front_ends
from tests.simulation.machines.coordinator import Life

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest

    from drumbeat.agent.core.effects import Effect as AgentEffect
    from drumbeat.agent.core.events import Event
    from drumbeat.agent.core.inprocess.worker import Worker
    from drumbeat.coordinator.core.effects import Effect
    from drumbeat.coordinator.core.inprocess.records import InprocessReport, IterationState
    from drumbeat.coordinator.core.model import AgentIdentity, FailureRecord, KeptDrain, Seat
    from drumbeat.coordinator.core.phases.phase import Transition
    from drumbeat.coordinator.core.rehearsal.model import Rehearsal
    from drumbeat.coordinator.core.run.notice import PendingNotice
    from drumbeat.coordinator.core.run.records import Record
    from drumbeat.inprocess import InprocessDirective, InprocessSeat

    Mistake = Callable[[pytest.MonkeyPatch], None]


def reuses_ports(patch: pytest.MonkeyPatch) -> None:
    """A leader's port serves again."""

    def port_of(self: RunContext, incarnation: str) -> int:
        return self.members.presences[incarnation].beat.master_port

    patch.setattr(RunContext, "port_of", port_of)


def releases_the_barrier_early(patch: pytest.MonkeyPatch) -> None:
    """The first group that is done speaks for all."""

    def review(self: Running, *, now: float, judged_at: float) -> Transition | None:
        if self.state.succeeded:
            return self.run.ended(VerdictCause.SUCCEEDED, "all workers succeeded", now=now)
        return original(self, now=now, judged_at=judged_at)

    original = Running.review
    patch.setattr(Running, "review", review)


def ignores_places(patch: pytest.MonkeyPatch) -> None:
    """Ranks are given as if all hosts were in one place."""

    def nowhere(agents: Sequence[AgentIdentity]) -> dict[str, tuple[str, ...]]:
        return {agent.incarnation: () for agent in agents}

    patch.setattr(ranks, "_places", nowhere)


def seats_parts_of_blocks(patch: pytest.MonkeyPatch) -> None:
    """Agents of a block that is not whole are seated beside whole ones."""
    patch.setattr(ranks, "whole_blocks", lambda present, _seats, _size: list(present))


def waits_for_the_dead(patch: pytest.MonkeyPatch) -> None:
    """A lost agent is never missed."""
    patch.setattr(RunState, "is_awaited", lambda _self, _incarnation: False)


def never_gives_up_the_silent(patch: pytest.MonkeyPatch) -> None:
    """Leases and graces never end."""
    patch.setattr(RunMembers, "pop_expired", lambda _self, now: [])  # noqa: ARG005
    patch.setattr(RunMembers, "next_deadline", lambda _self: None)


def counts_records_twice(patch: pytest.MonkeyPatch) -> None:
    """A record that comes again is new."""
    patch.setattr("drumbeat.coordinator.core.run.run.is_wanted", lambda *_args, **_kwargs: True)


def drops_records(patch: pytest.MonkeyPatch) -> None:
    """A record is acknowledged and forgotten."""

    def drop(state: RunState, record: FailureRecord, *, incarnations_max: int) -> bool:
        is_odd = record.sequence % 2 == 1
        return is_odd and is_wanted(state, record, incarnations_max=incarnations_max)

    patch.setattr("drumbeat.coordinator.core.run.run.is_wanted", drop)


def overdraws_the_budget(patch: pytest.MonkeyPatch) -> None:
    """Restarts are not counted against the limit."""

    def review(self: Running, now: float, judged_at: float) -> Transition | None:
        spec = self.state.spec
        self.state.spec = replace(spec, restarts_max=1000)
        transition = original(self, now, judged_at)
        self.state.spec = spec
        return transition

    original = Running._review_failure
    patch.setattr(Running, "_review_failure", review)


def forgets_successes(patch: pytest.MonkeyPatch) -> None:
    """What a beat said in the last life was not journaled."""

    def commit(self: RunContext, record: Record) -> None:
        original(self, record)
        if isinstance(record, GroupSucceeded):
            self.effects.pop()

    original = RunContext.commit
    patch.setattr(RunContext, "commit", commit)


def has_no_patience_with_itself(patch: pytest.MonkeyPatch) -> None:
    """A restarted coordinator gives everybody up at once."""

    patch.setattr(Policy, "return_grace_s", lambda _self, _pace: 0.0)


def fences_itself(patch: pytest.MonkeyPatch) -> None:
    """An agent stops its workers whenever a session ends."""

    def handle(self: AgentCore, event: Event, *, now: float) -> list[AgentEffect]:
        if isinstance(event, SessionLost) and event.refusal is None:
            event = SessionLost(attempt=event.attempt, reason=event.reason, is_stale=True)
        return original(self, event, now=now)

    original = AgentCore.handle
    patch.setattr(AgentCore, "handle", handle)


def starts_beside_the_living(patch: pytest.MonkeyPatch) -> None:
    """A new round does not wait for the old one's processes."""

    def stop(self: RoundWorkers, *signum: int) -> list[AgentEffect]:
        effects = original(self, *signum)
        self._alive, self._has_processes, self.is_stopping = set(), False, False
        return effects

    original = RoundWorkers.stop
    patch.setattr(RoundWorkers, "stop", stop)


def forgets_the_supervisors_death(patch: pytest.MonkeyPatch) -> None:
    """What died with a supervisor is still waited for."""
    patch.setattr(RoundWorkers, "lost", lambda _self, _event, now: [])  # noqa: ARG005


def guesses_the_verdict(patch: pytest.MonkeyPatch) -> None:
    """An agent whose workers are done and that is cut off claims success."""

    def end(self: AgentCore, error: object) -> None:
        if self.workers.state.value == GroupState.SUCCEEDED.value:
            verdict = Exit(is_success=True, reason="")
            self._on_directive(DirectiveReceived(attempt=0, state=verdict))
        else:
            original(self, error)  # type: ignore[arg-type]

    original = AgentCore._end_with
    patch.setattr(AgentCore, "_end_with", end)


def never_comes_back(patch: pytest.MonkeyPatch) -> None:
    """An agent tries once."""
    patch.setattr(AgentCore, "_connect", connect_once(AgentCore._connect))


def connect_once(original: Callable[..., None]) -> Callable[..., None]:
    """Return a ``_connect`` that only works for the first attempt."""

    def connect(self: AgentCore, delay_max_s: float, now: float) -> None:
        if self.link.attempt == 1:
            original(self, delay_max_s, now)

    return connect


def speaks_before_it_writes(patch: pytest.MonkeyPatch) -> None:
    """Effects leave before the journal has their records; a crash takes the records."""

    def perform(self: Life[Any], effects: Sequence[Effect]) -> None:
        self.turns.tell(effects)
        original(self, [effect for effect in effects if isinstance(effect, Kept)])

    original = Life._perform
    patch.setattr(Life, "_perform", perform)


def begins_without_the_late(patch: pytest.MonkeyPatch) -> None:
    """The first host at a barrier speaks for all."""

    def enter(self: Iterations, host: Seat, report: InprocessReport, now: float) -> None:
        original(self, host, report, now)
        self._entry.missing = {}

    original = Iterations._enter
    patch.setattr(Iterations, "_enter", enter)


def completes_with_the_first(patch: pytest.MonkeyPatch) -> None:
    """The first worker of a host that has completed speaks for all of them."""

    def step(self: HostIterations, present: list[Worker]) -> InprocessStep:
        found = original(self, present)
        is_one_done = any(worker.phase is InprocessStep.COMPLETED for worker in present)
        return InprocessStep.COMPLETED if found is InprocessStep.RUNNING and is_one_done else found

    original = HostIterations._step
    patch.setattr(HostIterations, "_step", step)


def never_misses_a_worker(patch: pytest.MonkeyPatch) -> None:
    """A barrier has all the time in the world."""
    patch.setattr(Iterations, "_barrier_deadline", lambda _self: float("inf"))


def keeps_the_terminated(patch: pytest.MonkeyPatch) -> None:
    """A worker that said good-bye is expected back."""
    patch.setattr(Iterations, "_take_terminated", lambda *_: None)


def leads_where_the_round_did(patch: pytest.MonkeyPatch) -> None:
    """An iteration's rank 0 listens where that of the round did."""

    def address(self: InProcessRestarts, *args: object) -> object:
        current = self._round
        found = original(self, *args)  # type: ignore[arg-type]
        if not isinstance(found, tuple):
            return found
        return current.master_addr, current.master_port

    original = InProcessRestarts._address
    patch.setattr(InProcessRestarts, "_address", address)


def deals_ranks_twice(patch: pytest.MonkeyPatch) -> None:
    """A host's workers all get the rank of the first."""

    def seats_of(self: Roster, host: Seat, state: IterationState) -> tuple[InprocessSeat, ...]:
        seats = original(self, host, state)
        return tuple(seat._replace(rank=seats[0].rank) for seat in seats)

    original = Roster.seats_of
    patch.setattr(Roster, "seats_of", seats_of)


def forgets_who_is_deserted(patch: pytest.MonkeyPatch) -> None:
    """Workers that all ended before an iteration began are nobody's to decide on."""

    def reported(
        self: Iterations, incarnation: str, report: InprocessReport, *, now: float
    ) -> None:
        original(self, incarnation, report, now=now)
        self._entry.is_deserted = False

    original = Iterations.reported
    patch.setattr(Iterations, "reported", reported)


def excuses_for_good(patch: pytest.MonkeyPatch) -> None:
    """What was excused amid an iteration stays so when it turns out to be complete."""

    def directed(
        self: HostIterations, directive: InprocessDirective, *, now: float
    ) -> list[AgentEffect]:
        effects = original(self, directive, now=now)
        self.has_failed = False
        return effects

    original = HostIterations.directed
    patch.setattr(HostIterations, "directed", directed)


def seats_the_silent(patch: pytest.MonkeyPatch) -> None:
    """An agent that holds a session is there, however long it has been silent."""
    patch.setattr(membership, "SUSPECT_INTERVALS", 1e6)


def charges_the_dead(patch: pytest.MonkeyPatch) -> None:
    """What a machine lost just before a failure has cost is not given back."""
    patch.setattr(SilentAtFailure, "take_back", lambda _self, _incarnation: None)


def ends_rounds_before_training_saved(patch: pytest.MonkeyPatch) -> None:
    """What an operator asks for is done at once."""

    def is_to_end(self: Running) -> bool:
        return bool(self.state.stop_reason or self.state.restart_reason)

    patch.setattr(Running, "_is_to_end", is_to_end)


def drains_before_training_saved(patch: pytest.MonkeyPatch) -> None:
    """So are drains."""
    original = Run._let_go_drained

    def let_go(self: Run, now: float) -> bool:
        notice, self.state.notice = self.state.notice, None
        try:
            return original(self, now)
        finally:
            self.state.notice = notice if self.state.phase is Phase.RUNNING else None

    patch.setattr(Run, "_let_go_drained", let_go)


def rehearses_without_end(patch: pytest.MonkeyPatch) -> None:
    """A rehearsal injects faults as long as the run lives."""

    def why_over(self: Rehearsals, _: Rehearsal) -> str:
        return "the run has ended" * (self._state.verdict is not None)

    patch.setattr(Rehearsals, "_why_over", why_over)


def kills_agents_that_are_needed(patch: pytest.MonkeyPatch) -> None:
    """A rehearsal kills agents below the minimum of the run."""
    patch.setattr(Rehearsals, "_obstacle", lambda *_: "")


def forgets_the_rest(patch: pytest.MonkeyPatch) -> None:
    """A large run tells the members of its first turn, and nobody after them."""
    patch.setattr(RunContext, "go_on_telling", lambda _: None)


def excuses_no_front_end(patch: pytest.MonkeyPatch) -> None:
    """Agents are given up for the time in which their front end stood still."""
    patch.setattr(front_ends, "is_deaf", lambda _unanswered: False)


def forgets_drains(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that restarts does not know who is to leave."""
    patch.setattr(Drains, "restore", lambda _self, _kept: None)


def gives_no_end_to_notices(patch: pytest.MonkeyPatch) -> None:
    """Training that does not save is waited for."""
    original = Notices._end

    def end(self: Notices, notice: PendingNotice, reason: str, now: float) -> None:
        if now < notice.until_s:
            original(self, notice, reason, now)

    patch.setattr(Notices, "_end", end)


# Of several coordinators.


def excludes_without_a_cap(patch: pytest.MonkeyPatch) -> None:
    """Any number of hosts may be excluded at once."""
    patch.setattr(exclusion, "excluded_max", lambda *_: 1000)


def excludes_below_the_minimum(patch: pytest.MonkeyPatch) -> None:
    """Hosts that are needed are excluded, too."""

    def obstacle(self: exclusion.Exclusions, drain: KeptDrain) -> tuple[str, str] | None:
        found = original(self, drain)
        return None if found is not None and found[0] == "minimum" else found

    original = exclusion.Exclusions._obstacle
    patch.setattr(exclusion.Exclusions, "_obstacle", obstacle)


def excludes_for_good(patch: pytest.MonkeyPatch) -> None:
    """The end of an exclusion is not looked at."""
    patch.setattr(exclusion.Exclusions, "readmit", lambda *_, **__: False)


def blames_any_number(patch: pytest.MonkeyPatch) -> None:
    """What hits most hosts at once is blamed on each of them."""

    patch.setattr(exclusion, "is_most", lambda *_: False)


# Of the account.


def loses_nobody(patch: pytest.MonkeyPatch) -> None:
    """The account does not hear of agents that were given up."""
    patch.setattr(Meter, "lost", lambda *_, **__: None)


def mistakes_ages(patch: pytest.MonkeyPatch) -> None:
    """A beat is as old as its message."""
    after = Beat.after
    patch.setattr(Beat, "after", lambda beat, before, **_: after(beat, before))


def forgets_causes(patch: pytest.MonkeyPatch) -> None:
    """The account does not keep what cost the time."""
    note = Meter.note
    patch.setattr(Meter, "note", lambda meter, *, now, end=None: note(meter, now=now))  # noqa: ARG005


BAD_HOST_MISTAKES: list[Mistake] = [
    excludes_without_a_cap,
    excludes_below_the_minimum,
    excludes_for_good,
    blames_any_number,
]

# Those that only machines that lose power together can show.
BLACKOUT_MISTAKES: list[Mistake] = [
    seats_the_silent,
    charges_the_dead,
]

# Those that only restarts in process can show.
ITERATION_MISTAKES: list[Mistake] = [
    begins_without_the_late,
    completes_with_the_first,
    never_misses_a_worker,
    keeps_the_terminated,
    leads_where_the_round_did,
    deals_ranks_twice,
    forgets_who_is_deserted,
    excuses_for_good,
]

MISTAKES: list[Mistake] = [
    reuses_ports,
    releases_the_barrier_early,
    ignores_places,
    seats_parts_of_blocks,
    waits_for_the_dead,
    never_gives_up_the_silent,
    counts_records_twice,
    drops_records,
    overdraws_the_budget,
    forgets_successes,
    has_no_patience_with_itself,
    fences_itself,
    starts_beside_the_living,
    forgets_the_supervisors_death,
    guesses_the_verdict,
    never_comes_back,
    speaks_before_it_writes,
    ends_rounds_before_training_saved,
    drains_before_training_saved,
    forgets_drains,
    gives_no_end_to_notices,
    forgets_the_rest,
    excuses_no_front_end,
    rehearses_without_end,
    kills_agents_that_are_needed,
    *ITERATION_MISTAKES,
]

ACCOUNT_MISTAKES: list[Mistake] = [loses_nobody, mistakes_ages, forgets_causes]
