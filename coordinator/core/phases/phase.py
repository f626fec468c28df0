"""Pure. What the phases of a run have in common, and what outlives them."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core import events as ev
from drumbeat.coordinator.core import model
from drumbeat.coordinator.core.failures.verdict import SilentAtFailure, make_verdict
from drumbeat.coordinator.core.membership.departed import Departed
from drumbeat.coordinator.core.membership.leases import RunMembers
from drumbeat.coordinator.core.phases.rendezvous import Wait
from drumbeat.coordinator.core.phases.seating import Seating
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.run import records as rec
from drumbeat.coordinator.core.run.adaptive_timeouts import Learning
from drumbeat.coordinator.core.run.history import entry_after
from drumbeat.coordinator.core.run.state import Phase, RunState
from drumbeat.coordinator.observe.goodput.meter import Seated
from drumbeat.coordinator.observe.goodput.stretches import MEASURED, Stretch, StretchEnd
from drumbeat.coordinator.observe.observer import account
from drumbeat.model import Assignment, NoticeKind, Standby, Stop
from drumbeat.text.format import count

Transition = rec.RoundStarted | rec.RoundEnded | rec.EndingStarted | rec.RunEnded


class RunContext:
    """One for each run. Every change of the durable state goes through ``commit``."""

    def __init__(self, state: RunState, members: RunMembers, policy: Policy) -> None:
        self.state, self.members, self.policy = state, members, policy
        self.seating = Seating(state, members)
        self.learning = Learning(policy.learning, state.limits or ())
        self.silent = SilentAtFailure()
        self.departed = Departed()
        # Workers of participants of the round that exited with 0 before they were told to stop.
        self.done: dict[str, int] = {}
        self.effects: list[fx.Effect] = []
        self._untold: dict[str, None] = {}  # members that may not know their desired state
        self._awaits_turn = False  # the rest of them is told when it comes

    def commit(self, record: rec.Record) -> None:
        """Fold a record in, and journal it."""
        before = self.state.observed.ledger.stretch
        self.state.apply(record)
        self.effects.append(fx.Persist(run_id=self.state.key, record=record))
        self._follow_account(before)

    def decide(self, record: rec.Record) -> None:
        """Commit a record that the history calls a decision, and log that."""
        before = self.state.observed.ledger.stretch
        self.effects += decided(self.state, record)
        self._follow_account(before)

    def note_progress(self, *, now: float, end: StretchEnd | None = None) -> None:
        """Journal what was seen of the present stretch of the account, and what ends it now."""
        if end is not None or self.state.observed.ledger.stretch in MEASURED:
            self.commit(self.members.observer.meter.note(now=now, end=end))

    def close_stretch(self, end: StretchEnd | None, *, now: float) -> None:
        """Have all noted that was seen of a stretch that ends now, and what ends it."""
        ledger = self.state.observed.ledger
        if end != ledger.end or self.members.observer.meter.marks != ledger.marks:
            self.note_progress(now=now, end=end)

    def resume_account(self, *, now: float) -> None:
        """Go on with the account of an earlier life. Linear in members."""
        members, ledger = self.state.members, self.state.observed.ledger
        round_id, sizes = self._seated()
        left = {incarnation: size for incarnation, size in sizes.items() if incarnation in members}
        if ledger.stretch is not None:
            self.members.observer.meter.resume(ledger, (round_id, left), members, now=now)

    def _follow_account(self, before: Stretch | None) -> None:
        """Let what agents say count for another stretch of the account, if one has begun."""
        ledger, meter = self.state.observed.ledger, self.members.observer.meter
        if ledger.number == meter.number:
            return  # as after most records
        presences = self.members.presences
        alive = (
            incarnation
            for incarnation in self.state.members
            if (presence := presences.get(incarnation)) is None
            or presence.heard_at is None
            or presence.beat.workers_alive
        )
        is_again = before in (Stretch.INTERRUPTED, Stretch.HUNG)
        meter.enter(ledger, self._seated(), alive, is_again=is_again)

    def _seated(self) -> Seated:
        state = self.state
        if state.phase is not Phase.RUNNING or state.round is None:
            return None, {}
        seats = state.seats.items()
        return state.round_id, {i: seat.agent.local_world_size for i, seat in seats}

    def exclude(self, incarnation: str, reason: str, now: float) -> str:
        """Let the host of this agent take no part; return what was done in words, else nothing."""
        return ""

    def unsettled_until(self, now: float) -> float | None:
        """Return until when it is open which hosts failed; ``None``: the round may start."""
        return None

    def log(self, decision: str, reason: str) -> None:
        """Have a decision logged."""
        run_id, round_id = self.state.run_id, self.state.round_id
        log = fx.Decided(run_id=run_id, decision=decision, reason=reason, round_id=round_id)
        self.effects.append(log)

    def ended(self, cause: model.VerdictCause, reason: str, *, now: float) -> rec.RunEnded:
        """Return the end of the run, with the report on its last round if that failed."""
        verdict = make_verdict(self.state, self.members, self.done, cause=cause, reason=reason)
        made = account(self.state.observed, self.members.observer, now=now)
        return rec.RunEnded(verdict=replace(verdict, goodput=made.line()), at_s=now)

    def port_of(self, incarnation: str) -> int:
        """Return the port this agent holds for a round it leads; 0 if none, or a used one."""
        port = self.members.presences[incarnation].beat.master_port
        address = self.state.members[incarnation].address
        return 0 if (address, port) in self.state.masters_spent else port

    def tell(self, incarnations: Iterable[str]) -> None:
        """Let these members know their desired state, if it is news to them."""
        self._untold.update(dict.fromkeys(sorted(incarnations)))

    def tell_all(self) -> None:
        """Let all members know theirs. Linear in them."""
        self._untold = dict.fromkeys(self.members.presences)

    def go_on_telling(self) -> None:
        """Take in that another turn has come."""
        self._awaits_turn = False

    def take_effects(
        self, wait: Wait | None, released: Mapping[str, str], *, now: float
    ) -> list[fx.Effect]:
        """Return the effects since the last call; ``wait`` and ``released`` are the phase's."""
        taken, self.effects = self.effects, []
        if not self._untold or self._awaits_turn:
            return taken  # as after most events
        for incarnation in list(itertools.islice(self._untold, self.policy.told_per_turn)):
            del self._untold[incarnation]
            presence = self.members.presences.get(incarnation)
            if presence is None or presence.session_id is None:
                continue
            push = fx.Direct(
                session_id=presence.session_id,
                state=self.desired_state(incarnation, wait, released.get(incarnation), now=now),
                master_port_spent=presence.master_port_spent,
            )
            if _is_news(push, presence.pushed):
                self.members.directed(incarnation, push, now=now)
                taken.append(push)
        if self._untold:
            self._awaits_turn = True
            taken.append(fx.TellMore(run_id=self.state.key))
        return taken

    def desired_state(
        self, incarnation: str, wait: Wait | None, released: str | None = None, *, now: float
    ) -> model.Desired:
        """Return what an agent shall do. Does not depend on the number of agents."""
        state, current, present = self.state, self.state.round, self.members.present_count
        if state.verdict is not None:
            return self.exit_of(state.verdict, incarnation)
        if state.phase is Phase.ENDING:
            return Stop(reason=state.reason)
        if state.phase is Phase.RUNNING and current is not None:
            if released is not None:
                return model.Release(reason=released)
            if state.is_seated(incarnation):
                return self._assignment(current, incarnation)
            left = count(len(current.seats) - len(state.given_up), "agent")
            why = self.seating.why_outside(incarnation)
            more = f"; {wait.reason}" if wait is not None else f": {why}" if why else ""
            reason = f"round {current.round_id} runs on {left}; this one stands by{more}"
            wait = Wait(reason=reason, agents_wanted=0, until=None)
        wait = wait or Wait(reason=state.reason, agents_wanted=0, until=None)
        health = self.members.unfit.get(incarnation)
        reason = f"unhealthy: {health.reason}" if health and health.reason else wait.reason
        if state.phase is Phase.GATHERING and incarnation in state.left_out:
            reason = self.seating.why_outside(incarnation)
        return Standby(
            reason=reason,
            agents_present=present,
            agents_wanted=wait.agents_wanted,
            time_left_s=None if wait.until is None else max(0.0, wait.until - now),
        )

    def _assignment(self, current: model.Round, incarnation: str) -> Assignment:
        seat = current.seats[incarnation]
        return Assignment(
            round_id=current.round_id,
            restart_count=current.restart_count,
            group_rank=seat.group_rank,
            group_world_size=len(current.seats),
            rank_first=seat.rank_first,
            world_size=current.world_size,
            role_rank_first=seat.role_rank_first,
            role_world_size=seat.role_world_size,
            master_addr=current.master_addr,
            master_port=current.master_port,
            reason=current.reason,
            restarts_used=self.state.restarts_used,
            restarts_max=self.state.spec.restarts_max,
            has_store=current.has_store,
            is_preflight=current.is_preflight,
        )

    def exit_of(self, verdict: model.Verdict, incarnation: str) -> model.Exit:
        """Return the end, and whether this agent is one of the few that show the whole report."""
        first, report = next(iter(self.state.seats.values()), None), verdict.report
        records = (*report.root_causes, *report.victims) if report is not None else ()
        is_among = any(record.incarnation == incarnation for record in records)
        return model.Exit(
            verdict=verdict,
            generation=self.state.generation,
            shows_report=first is None or first.agent.incarnation == incarnation or is_among,
            shown_on=first.agent.host if first is not None else "",
        )


def _is_news(push: fx.Direct, pushed: fx.Direct | None) -> bool:
    """Return whether a session has to be sent this after what it was sent last."""
    if pushed is None or push.master_port_spent != pushed.master_port_spent:
        return True
    match push.state, pushed.state:
        case Assignment(round_id=new), Assignment(round_id=old):
            return new != old  # a round keeps its seats
        case Standby() as new, Standby() as old:
            if (new.reason, new.agents_present) != (old.reason, old.agents_present):
                return True
            return replace(new, time_left_s=old.time_left_s) != old  # that passes by itself
    return push.state != pushed.state


def decided(state: RunState, record: rec.Record) -> list[fx.Effect]:
    """Fold in a record that the history calls a decision; return what journals and logs it."""
    state.apply(record)
    what = entry_after(state.history[-1], state.events_count - 1)
    run_id, round_id = state.run_id, state.round_id
    log = fx.Decided(run_id=run_id, decision=what.decision, reason=what.reason, round_id=round_id)
    return [fx.Persist(run_id=state.key, record=record), log]


# Most phases ignore most events: what a phase does not override does nothing.
class RunPhase(ABC):
    """The volatile facts of the time that a phase lasts.

    It is made at the transition, and after a restart of the coordinator, from the durable
    state alone, and dropped with its facts. ``wait`` is what waiting agents are told,
    ``released`` are participants that need not wait for the others any more, with the reason.
    """

    released: Mapping[str, str] = {}

    def __init__(self, run: RunContext, *, now: float) -> None:
        self.run, self.state, self.members = run, run.state, run.members
        self.wait: Wait | None = None
        self.review_at: float | None = now  # a phase may find at once what is due

    @abstractmethod
    def review(self, *, now: float, judged_at: float) -> Transition | None:
        """Return the record that leads to the next phase, ``None`` if this one goes on.

        Timeouts are judged as of ``judged_at``, which is not after ``now``. Linear work is rare.
        """

    def connected(self, incarnation: str, *, now: float) -> None:  # noqa: B027
        """Take in that a member has a new session."""

    def disconnected(self, incarnation: str, *, now: float) -> None:  # noqa: B027
        """Take in that a member's session ended."""

    def heard(self, incarnation: str, beat: model.Beat, *, sent_at: float, now: float) -> None:  # noqa: B027
        """Take in a beat of a member."""

    def evidence_taken(self, event: ev.EvidenceTaken, *, now: float) -> None:  # noqa: B027
        """Take in what all workers of a round do."""

    def recorded(self, incarnation: str) -> None:  # noqa: B027
        """Take in that a failure record of this agent was counted."""

    def lost(self, incarnation: str, reason: str, *, was_silent: bool, now: float) -> bool:
        """Take in that a member is given up; return whether its round goes on without it.

        ``was_silent``: it had not been heard since before the latest failure.
        """
        return False

    def resumed(self, *, now: float) -> None:  # noqa: B027
        """Take in that no agent could come or be told anything for a while, and can again."""

    def stretch_end(self, transition: Transition) -> StretchEnd | None:
        """Return what of its end the account is told; ``None``: what the transition says."""
        return None

    def orders(self, *, now: float) -> Sequence[fx.ToWorkers]:
        """Return what to tell workers, once."""
        return ()

    def give_notice(self, kind: NoticeKind, reason: str, *, until: float, now: float) -> None:  # noqa: B027
        """Let training save until then, before what is planned; without a round there is none."""

    def check_invariants(self) -> None:  # noqa: B027
        """Assert what must hold between events. Linear in agents; for tests."""
