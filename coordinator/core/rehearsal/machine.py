"""Pure. Decides when a rehearsal injects which fault, and when a run has recovered from one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import RehearsalAsked
from drumbeat.coordinator.core.model import AgentIdentity, VerdictCause
from drumbeat.coordinator.core.phases.phase import RunContext
from drumbeat.coordinator.core.rehearsal import model
from drumbeat.coordinator.core.rehearsal.model import Fault, Outcome, Rehearsal, RehearsalPlan
from drumbeat.coordinator.core.run.records import CallKind, CallNoted
from drumbeat.coordinator.core.run.state import Phase
from drumbeat.coordinator.errors import WrongPhase
from drumbeat.coordinator.observe.goodput.stretches import Stretch
from drumbeat.model import FaultKind, FaultOrder, GroupState
from drumbeat.text.durations import SECOND, format_duration
from drumbeat.text.format import count


class Rehearsals:
    """Those of one run, one at a time. Not thread-safe; one owner calls it.

    ``due_at`` is when ``review`` is to be called at the latest.
    """

    def __init__(self, run: RunContext) -> None:
        self._run, self._state = run, run.state
        self.due_at: float | None = None
        self._told: dict[int, str] = {}  # sessions that were told of open faults, by their orders

    def asked(self, event: RehearsalAsked, *, now: float) -> fx.Steered | WrongPhase:
        """Begin a rehearsal, or have no further fault injected."""
        plan, before, caller = event.plan, self._state.rehearsal, event.caller
        if event.call_id and event.call_id in self._state.calls:
            return fx.Steered(outcome="it was asked before", is_new=False)
        if plan is None:
            if before is None or self._why_over(before):
                return fx.Steered(outcome="no fault would be injected anyway", is_new=False)
            outcome, kind = "no further fault is injected", CallKind.REHEARSAL_STOPPED
            kept = replace(before, plan=replace(before.plan, at_most=len(before.faults)))
        else:
            if refused := self._refusal():
                return WrongPhase(self._state.run_id, *refused)
            due_at = now if plan.is_first_now else now + plan.interval_s(1)
            outcome, kind = self._outlook(plan, due_at - now), CallKind.REHEARSAL_STARTED
            orders = before.orders_before + len(before.faults) if before is not None else 0
            kept = Rehearsal(
                plan=plan, began_at=now, due_at=due_at, caller=caller, orders_before=orders
            )
        call_id = event.call_id
        noted = CallNoted(kind=kind, reason=outcome, caller=caller, at_s=now, call_id=call_id)
        self._run.decide(noted)
        self._run.commit(model.RehearsalNoted(rehearsal=kept, at_s=now))
        return fx.Steered(outcome=outcome)

    def review(self, *, now: float) -> None:
        """Take in what became of open faults, and inject the next one if it is time."""
        self.due_at = None
        if (rehearsal := self._state.rehearsal) is None or rehearsal.is_over:
            return
        for fault in rehearsal.open_faults:
            if (seen := self._seen(fault, now)) != fault:
                rehearsal = self._note(rehearsal, seen, now)
        if not self._why_over(rehearsal):
            rehearsal = self._inject_if_due(rehearsal, now)
        if (why := self._why_over(rehearsal)) and not rehearsal.open_faults:
            over = replace(rehearsal, is_over=True)
            self._decide(over, model.ENDED, f"{why}; {over.verdict()}", now)

    def orders(self) -> list[fx.InjectFault]:
        """Return what agents are to inject, once for each session until they have answered."""
        rehearsal, presences = self._state.rehearsal, self._run.members.presences
        before, self._told, orders = self._told, {}, []
        for fault in rehearsal.open_faults if rehearsal is not None else ():
            presence, number = presences.get(fault.incarnation), fault.order.number
            if fault.is_injected or presence is None or presence.session_id is None:
                continue
            self._told[number] = session_id = presence.session_id
            if before.get(number) != session_id:
                orders.append(fx.InjectFault(session_id=session_id, order=fault.order))
        return orders

    def _refusal(self) -> tuple[str, str] | None:
        """Return how the run is and what to do about it, if it can't be rehearsed."""
        state, rehearsal = self._state, self._state.rehearsal
        if not self._run.policy.allows_rehearsals:
            serve = "`coordinator serve --allow-rehearsals` allows that"
            return "may not be rehearsed, as no run of this coordinator", serve
        if state.verdict is not None or state.phase is Phase.ENDING or state.stop_reason:
            return "ends or has ended", "there is nothing to rehearse"
        if rehearsal is not None and not rehearsal.is_over:
            stop = f"`coordinator rehearse {state.run_id} --stop` ends that"
            return "is being rehearsed already", stop
        if not any(agent.can_rehearse for agent in state.members.values()):
            advice = "that takes agents of this release, started with `agent join`"
            return "has no agent that can inject faults", advice
        return None

    def _outlook(self, plan: RehearsalPlan, first_s: float) -> str:
        every = format_duration(plan.every_s)
        first = f"in {format_duration(first_s)}" if first_s else "now"
        obstacle = self._obstacle() if FaultKind.AGENT in plan.kinds else ""
        warning = f"; no agent is killed now: {obstacle}" if obstacle else ""
        faults = f"{count(plan.at_most, 'fault')}, one about every {every}, the first {first}"
        return f"{faults}; seed {plan.seed}{warning}"

    def _obstacle(self, target: str = "") -> str:
        """Return why this agent must not be killed, without one: any. Linear in members."""
        state, members = self._state, self._run.members
        available = sum(
            members.is_available(i) and not (i in state.left_out or state.is_killed(i))
            for i in state.members
            if i != target
        )
        left, least = max(0, available - (not target)), state.spec.agents_min
        return f"{left} of {least} needed agents would be left" if left < least else ""

    def _why_over(self, rehearsal: Rehearsal) -> str:
        """Return why no further fault is injected; empty: one is."""
        if rehearsal.is_over or self._state.verdict is not None:
            return "the run has ended"
        if not self._run.policy.allows_rehearsals:
            return "this coordinator allows no rehearsals"
        return "no further fault comes" * (len(rehearsal.faults) >= rehearsal.plan.at_most)

    def _note(self, rehearsal: Rehearsal, fault: Fault, now: float, **more: Any) -> Rehearsal:
        """Journal a fault that is new, or of which more is known."""
        faults = {known.number: known for known in rehearsal.faults} | {fault.number: fault}
        rehearsal = replace(rehearsal, faults=tuple(faults.values()), **more)
        if more or fault.outcome is not Outcome.OPEN:
            decision = model.INJECTED if fault.outcome is Outcome.OPEN else model.OVER
            self._decide(rehearsal, decision, rehearsal.describe(fault), now)
        else:
            self._run.commit(model.RehearsalNoted(rehearsal=rehearsal, at_s=now))
        return rehearsal

    def _decide(self, rehearsal: Rehearsal, decision: str, reason: str, now: float) -> None:
        self._run.decide(
            model.RehearsalNoted(rehearsal=rehearsal, decision=decision, reason=reason, at_s=now)
        )

    def _seen(self, fault: Fault, now: float) -> Fault:
        """Return a fault with what is known of it now."""
        state, ledger = self._state, self._state.observed.ledger
        fault, has_ended = self._answered(fault), ledger.number != fault.stretch
        if fault.outcome is not Outcome.OPEN:
            return fault
        if has_ended and fault.detected_s is None:
            fault = replace(fault, detected_s=now - fault.at_s)
        if (verdict := state.verdict) is not None:
            is_fine = verdict.is_success or verdict.cause is VerdictCause.STOPPED
            outcome = Outcome.RUN_ENDED if is_fine else Outcome.RUN_FAILED
            return replace(fault, outcome=outcome, reason=f"the run ended: {verdict.reason}")
        if not has_ended:
            return self._endured(fault, now)
        if not fault.is_injected or ledger.stretch is not Stretch.ROUND:
            return fault
        marks, reached = self._run.members.observer.meter.marks, ledger.reached
        if fault.running_s is None and marks.running is not None:
            fault = replace(fault, running_s=marks.running / SECOND - fault.at_s)
        if fault.running_s is None or (began := marks.began_after(reached)) is None:
            return fault
        trained_s, repeated = max(fault.running_s, began / SECOND - fault.at_s), None
        if reached is not None and marks.step_first is not None:
            repeated = max(0, reached - marks.step_first)
        fault = replace(fault, trained_s=trained_s, steps_repeated=repeated)
        if (losses := self._run.members.observer.meter.said.loss_jump()) is not None:
            fault = replace(fault, loss_before=losses[0], loss_after=losses[1])
        return replace(fault, outcome=Outcome.RECOVERED)

    def _answered(self, fault: Fault) -> Fault:
        """Return a fault with what its agent says of it; one that was killed says nothing."""
        presence = self._run.members.presences.get(fault.incarnation)
        report = None if presence is None else presence.beat.fault
        if report is not None and report.number == fault.order.number:
            refusal = report.refusal
        elif fault.incarnation in self._state.members:
            return fault
        else:
            is_killed = fault.order.kind is FaultKind.AGENT
            refusal = "" if is_killed else "its agent was lost before it answered"
        if fault.is_injected or not refusal:
            return replace(fault, is_injected=True)
        return replace(fault, outcome=Outcome.NOT_INJECTED, reason=refusal)

    def _endured(self, fault: Fault, now: float) -> Fault:
        """Return a pause that nothing has noticed: over once the host's workers go on after it."""
        over_at = fault.at_s + fault.order.pause_s
        if not fault.is_injected or fault.order.kind is not FaultKind.HOST_PAUSE:
            return fault
        if now < over_at:
            self._review_until(over_at)
            return fault
        presence = self._run.members.presences.get(fault.incarnation)
        if presence is None or (presence.heard_at or 0.0) < over_at:
            return fault
        workers = presence.whereabouts.in_round(fault.order.round_id, now=now)
        ages = [w.heartbeat_age_s for w in workers if w.heartbeat_age_s is not None]
        if any(now - age < over_at for age in ages):
            return fault
        return replace(fault, outcome=Outcome.RECOVERED, trained_s=now - fault.at_s)

    def _review_until(self, until: float) -> None:
        self.due_at = until if self.due_at is None else min(until, self.due_at)

    def _inject_if_due(self, rehearsal: Rehearsal, now: float) -> Rehearsal:
        """Inject the next fault if it is time and the run trains: else it does some time."""
        if rehearsal.open_faults and not rehearsal.plan.may_overlap:
            return rehearsal
        if now < rehearsal.due_at:
            self._review_until(rehearsal.due_at)
        elif (targets := self._targets(rehearsal)) is not None:
            fault = self._chosen(rehearsal, targets, now)
            due_at = now + rehearsal.plan.interval_s(fault.number + 1)
            self._review_until(due_at)
            return self._note(rehearsal, fault, now, due_at=due_at)
        return rehearsal

    def _targets(self, rehearsal: Rehearsal) -> list[AgentIdentity] | None:
        """Return the agents that can inject a fault; ``None`` if the run does not train. Linear."""
        state, members, ledger = self._state, self._run.members, self._state.observed.ledger
        marks = members.observer.meter.marks
        has_begun = marks.running is not None and marks.began_after(ledger.reached) is not None
        is_planned = state.notice is not None or state.stop_reason or state.restart_reason
        if ledger.stretch is not Stretch.ROUND or not has_begun or is_planned or state.succeeded:
            return None
        busy = {fault.incarnation for fault in rehearsal.open_faults}
        agents = []
        for incarnation, seat in state.seats.items():
            if incarnation in state.excused:
                continue
            if not members.is_available(incarnation):
                return None
            beat = members.presences[incarnation].beat
            if (beat.round_id, beat.state) != (state.round_id, GroupState.RUNNING):
                return None
            if seat.agent.can_rehearse and incarnation not in busy:
                agents.append(seat.agent)
        return agents

    def _chosen(self, rehearsal: Rehearsal, targets: Sequence[AgentIdentity], now: float) -> Fault:
        """Return the next fault as the seed wants it; one that must not be is over at once."""
        state, plan, number = self._state, rehearsal.plan, len(rehearsal.faults) + 1
        kind, local_rank, rank = plan.choose(number, "kind", plan.kinds), 0, None
        agent = plan.choose(number, "host", targets) if targets else None
        obstacle = "" if agent else "no agent of the round can inject it"
        if agent and kind is FaultKind.WORKER:
            local_rank = plan.choose(number, "rank", range(agent.local_world_size))
            rank = state.seats[agent.incarnation].rank_first + local_rank
        elif agent and kind is FaultKind.AGENT:
            obstacle = self._obstacle(agent.incarnation)
        order = FaultOrder(
            number=rehearsal.orders_before + number,
            round_id=state.round_id or 0,
            kind=kind,
            local_rank=local_rank,
            pause_s=plan.pause_s if kind is FaultKind.HOST_PAUSE else 0.0,
        )
        return Fault(
            number=number,
            order=order,
            at_s=now,
            stretch=state.observed.ledger.number,
            incarnation=agent.incarnation if agent else "",
            name=agent.name if agent else "",
            rank=rank,
            outcome=Outcome.NOT_INJECTED if obstacle else Outcome.OPEN,
            reason=obstacle,
        )
