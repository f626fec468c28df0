"""Pure. One run: who is in it, which round it is in, when it restarts, how it ends."""

from __future__ import annotations

import math
from functools import partial
from typing import assert_never

from msgspec.structs import replace

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core import events as ev
from drumbeat.coordinator.core.failures.verdict import is_wanted, taken
from drumbeat.coordinator.core.membership.admission import Names, refusal
from drumbeat.coordinator.core.membership.drains import Drains, who_and_why
from drumbeat.coordinator.core.membership.exclusion import Exclusions
from drumbeat.coordinator.core.membership.leases import RunMembers
from drumbeat.coordinator.core.membership.load import Load
from drumbeat.coordinator.core.membership.outside import Outside, waits_for
from drumbeat.coordinator.core.model import (
    Accusation,
    FailureRecord,
    KeptDrain,
    Release,
)
from drumbeat.coordinator.core.phases.ending import Ended, Ending
from drumbeat.coordinator.core.phases.gathering import Gathering
from drumbeat.coordinator.core.phases.phase import RunContext, RunPhase, Transition
from drumbeat.coordinator.core.phases.running import Running
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.rehearsal.machine import Rehearsals
from drumbeat.coordinator.core.restarts.decision import describe_wait, waiting
from drumbeat.coordinator.core.run import records as rec
from drumbeat.coordinator.core.run.reasons import hosts
from drumbeat.coordinator.core.run.state import Phase, RunState
from drumbeat.coordinator.core.run.steering import (
    checkpointed,
    noted,
    restarted,
    stopped,
    with_notice,
)
from drumbeat.coordinator.errors import (
    CoordinatorError,
    SessionReplaced,
    StaleSession,
)
from drumbeat.coordinator.observe.observations import HealthNoted
from drumbeat.model import HealthState, NoticeKind
from drumbeat.text.format import are, count

PHASES: dict[Phase, type[RunPhase]] = {
    Phase.GATHERING: Gathering,
    Phase.RUNNING: Running,
    Phase.ENDING: Ending,
    Phase.ENDED: Ended,
}


class Run(RunContext):
    """The core of one run. What follows from an event is decided by the state, not the event."""

    def __init__(
        self,
        state: RunState,
        policy: Policy,
        *,
        now: float,
        drains: Drains | None = None,
        load: Load | None = None,
    ) -> None:
        """Go on from the durable state; every member is missed until it is heard."""
        # All that are expected may come back at once.
        members = RunMembers(policy, agents=_expected(state), load=load)
        members.latest_arrival = now
        super().__init__(state, members, policy)
        self._rehearsals = Rehearsals(self)
        self.failures_bytes_max = policy.failures_bytes_per_run_max
        self.drains = drains or Drains(most=policy.drains_max)
        self._exclusions = Exclusions(self, self.drains)
        self._outside = Outside(policy.agents_max)
        # Members that leave once training could save, or the run has a round no more.
        self._draining: dict[str, None] = {}
        if state.verdict is None and self.drains.kept:
            self._draining = dict.fromkeys(self._find_drained())
        self._forgiving_until = -math.inf  # streams break that agents gave up during an outage
        self._is_dismissed = False  # whether they have heard how the run ended
        self._names = Names(member.name for member in state.members.values())
        self._workers = sum(member.local_world_size for member in state.members.values())
        if state.phase is not Phase.ENDED:
            members.take_over(state.members, now=now)
        self.resume_account(now=now)
        self._phase = PHASES[state.phase](self, now=now)

    def handle(self, event: ev.CoreEvent, *, now: float) -> list[fx.Effect]:
        """Take one event in at ``now`` (seconds, the coordinator's clock)."""
        if isinstance(event, ev.BeatReceived) and self.take_quietly(event, now=now):
            return []
        # No timeout is over before its deadline is due, which comes when nothing waits to be read
        # any more: a coordinator that stood still reads late what was said in time.
        due, judged_at = self._phase.review_at, now
        if due is not None and now >= due and not isinstance(event, ev.DeadlineReached):
            judged_at = math.nextafter(due, -math.inf)
        if isinstance(event, ev.TurnCame):
            self.go_on_telling()
        elif isinstance(event, ev.EvidenceTaken):
            self._phase.evidence_taken(event, now=now)
        else:
            self._take_in(event, now)
        self._let_go_drained(now)
        while True:
            transition = self._phase.review(now=now, judged_at=judged_at)
            if isinstance(transition, rec.RoundStarted) and self._exclusions.count_blame(now=now):
                self._draining = dict.fromkeys(self._find_drained())
                transition = None if self._draining else transition  # without them it is another
            if transition is not None:
                self._follow(transition, now)
            if not self._let_go_drained(now) and transition is None:
                break
        self._rehearsals.review(now=now)
        if self.members.observer.meter.is_due(now):
            self.note_progress(now=now)
        for record in self.members.observer.news(self.state.observed, now=now):
            self.decide(record)
        phase = self._phase
        effects = self.take_effects(phase.wait, phase.released, now=now)
        effects += [*phase.orders(now=now), *self._rehearsals.orders()]
        if self.state.verdict is not None and not self._is_dismissed:
            self._is_dismissed = True
            effects += self._outside.dismiss(partial(self.exit_of, self.state.verdict))
        return effects + self._paces(now)

    def _paces(self, now: float) -> list[fx.SetPace]:
        """Return what tells all members their pace, if it is another one for so many."""
        if not self.members.follow(_expected(self.state), now=now):
            return []
        pace = self.members.pace
        return [fx.SetPace(session_id=i, pace=pace) for i in self.members.sessions()]

    def take_quietly(self, event: ev.BeatReceived, *, now: float) -> bool:
        """Take in a beat that says nothing new, or of one outside; return whether it was one."""
        awaited = self.silent.charged
        if event.incarnation in self.departed:
            return False
        return self._outside.take(event) or self.members.take_quietly(
            event, awaited=awaited, now=now
        )

    def next_deadline(self) -> float | None:
        """Return when ``DeadlineReached`` is due, ``None`` if nothing is awaited."""
        own = self.learning.due_at, self._exclusions.due_at, self._rehearsals.due_at
        instants = (self.members.next_deadline(), self._phase.review_at, *own)
        return min((at for at in instants if at is not None), default=None)

    def check_invariants(self) -> None:
        """Assert what must hold between events. Linear in agents; for tests."""
        self.state.check_invariants()
        self.members.check_invariants()
        self.seating.check_invariants()
        assert type(self._phase) is PHASES[self.state.phase], "the phase is not the state's"
        assert self._draining.keys() <= self.state.members.keys(), "who has left is to leave"
        self._phase.check_invariants()

    def reason(self, now: float) -> str:
        """Return why the run is as it is."""
        if self._phase.wait is not None:
            if self._phase.wait.until == self.state.restarts.until_s:
                return describe_wait(self.state, now=now) or self._phase.wait.reason
            return self._phase.wait.reason
        iterations = self.state.iterations if self.state.phase is Phase.RUNNING else None
        return (iterations.reason if iterations is not None else "") or self.state.reason

    @property
    def waits_until(self) -> float | None:
        """Until when the run waits before it decides; ``None``: it does not, or has no limit."""
        return None if self._phase.wait is None else self._phase.wait.until

    def exclude(self, incarnation: str, reason: str, now: float) -> str:
        """Exclude an agent's host; return what that means in words, empty if it can't be."""
        outcome = self._exclusions.exclude(incarnation, reason, now)
        if outcome:
            self._draining = dict.fromkeys(self._find_drained())
        return outcome

    def unsettled_until(self, now: float) -> float | None:
        """Return until when more hosts may fail with one that is to be excluded."""
        return self._exclusions.unsettled_until(now)

    def outside(self) -> list[tuple[ev.SessionOpened, str]]:
        """Return the agents that wait outside, as they came, each with the reason."""
        held = ((opened, self._drain_of(opened)) for opened in self._outside)
        return [(opened, waits_for(drain)) for opened, drain in held if drain is not None]

    def _take_in(self, event: ev.OtherEvent, now: float) -> None:
        match event:
            case ev.SessionOpened():
                self._on_session_opened(event, now)
            case ev.SessionClosed():
                self._on_session_closed(event, now)
            case ev.BeatReceived() | ev.AgentLeft():
                self._on_report(event, now)
            case ev.FailureReported():
                self._on_failure(event, now)
            case ev.EndDecided():
                self._follow(self.ended(event.cause, event.reason, now=now), now)
            case ev.LimitsReset():
                forgotten = len(self.state.limits or ())
                self.learning.forget()
                self._tell_limits()
                outcome = f"{count(forgotten, 'limit')} forgotten"
                self._note(rec.CallKind.LIMITS_RESET, outcome, event.caller, now)
                self.effects.append(fx.Answer(request_id=event.request_id, result=forgotten))
            case ev.DrainAsked():
                self._on_drain(event, now)
            case ev.SteeringAsked():
                self._on_steering(event, now)
            case ev.CallNoted():
                self._note(event.kind, event.reason, event.caller, now)
            case ev.DeadlineReached():
                self._on_deadline(now)
            case ev.OutageEnded() | ev.Deafened():
                self._on_gap(event, now)
            case _:
                assert_never(event)

    def _on_steering(self, event: ev.Steering, now: float) -> None:
        """Note what an operator wants; the phase's review does it, now or after a restart."""
        is_known = bool(event.call_id) and event.call_id in self.state.calls
        result: fx.Steered | CoordinatorError
        match event:
            case ev.RehearsalAsked():
                result = self._rehearsals.asked(event, now=now)
            case ev.NoteAsked():
                result = fx.Steered(outcome="the note is added", is_new=not is_known)
            case _ if is_known:
                result = fx.Steered(outcome="it was asked before", is_new=False)
            case ev.StopAsked():
                result = stopped(self.state)
            case ev.RestartAsked():
                result = self._restarted(now)
            case ev.CheckpointAsked():
                result = checkpointed(self.state)
        is_new = isinstance(result, fx.Steered) and result.is_new
        if is_new and not isinstance(event, ev.RehearsalAsked):
            self.decide(noted(event, now=now))
        if isinstance(event, ev.CheckpointAsked) and is_new:
            reason = event.reason or f"asked for by {event.caller or 'the operator'}"
            self._give_notice(NoticeKind.CHECKPOINT, reason, event.grace_s, now)
        elif isinstance(event, ev.StopAsked | ev.RestartAsked) and not is_known:
            is_stop = isinstance(event, ev.StopAsked)
            if asked := self.state.stop_reason if is_stop else self.state.restart_reason:
                kind = NoticeKind.STOP if is_stop else NoticeKind.RESTART
                self._give_notice(kind, asked, event.grace_s, now)
                result = with_notice(result, self.state, now=now)
        self.effects.append(fx.Answer(request_id=event.request_id, result=result))

    def _restarted(self, now: float) -> fx.Steered | CoordinatorError:
        """Return what asking for another round leads to. Linear in members."""
        members, round_id = self.members, self.state.round_id
        beats = (presence.beat for presence in members.presences.values())
        has_begun = bool(members.missed) or any(beat.round_id == round_id for beat in beats)
        is_delayed = waiting(self.state, now=now) is not None
        return restarted(self.state, has_begun=has_begun, is_delayed=is_delayed)

    def _on_drain(self, event: ev.DrainAsked, now: float) -> None:
        """Make agents leave, or let in those that waited for it; the table has changed already."""
        run_id, members = self.state.run_id, self.state.members
        self._exclusions.look()
        if self.state.verdict is not None:
            return  # those who wait outside have heard it
        if event.is_lifted:
            self._let_in(event, now)
            self._draining = dict.fromkeys(self._find_drained())
            return
        drained = self._find_drained()
        for incarnation in drained:
            if incarnation not in self._draining:
                note = f"{members[incarnation].name}: {event.reason or 'no reason is given'}"
                self._note(rec.CallKind.AGENT_DRAINED, note, event.caller, now)
        self._draining = dict.fromkeys(drained)
        if awaited := [i for i in drained if self.state.is_awaited(i)]:
            drain = self.drains.find(run_id, members[awaited[0]])
            why = who_and_why(drain) if drain is not None else ""
            current = self.state.round
            who = hosts(current, awaited) if current is not None else ""
            reason = f"{who} {are(len(awaited))} {why}"
            self._give_notice(NoticeKind.DRAIN, reason, event.grace_s, now)

    def _let_in(self, asked: ev.DrainAsked | None, now: float) -> None:
        """Let in those outside that no drain holds any more, for a caller or by themselves."""
        for opened in self._outside:
            if self._drain_of(opened) is None:
                self._outside.let_in(opened)
                if asked is not None:
                    note = f"{opened.agent.name}: {asked.reason or 'no reason is given'}"
                    self._note(rec.CallKind.AGENT_UNDRAINED, note, asked.caller, now)
                self._enter(opened, now)

    def _give_notice(
        self, kind: NoticeKind, reason: str, grace_s: float | None, now: float
    ) -> None:
        """Let training save before what was asked for; asked again, it may have less time."""
        grace_s = self.policy.checkpoint_grace_s if grace_s is None else grace_s
        self._phase.give_notice(kind, reason, until=now + grace_s, now=now)

    def _find_drained(self) -> list[str]:
        """Return members that shall take no part. Linear in them."""
        run_id, members = self.state.run_id, self.state.members.items()
        return [i for i, agent in members if self.drains.find(run_id, agent) is not None]

    def _let_go_drained(self, now: float) -> bool:
        """Have drained members leave whom nothing keeps; return whether there were any.

        None leaves a round while training may save, nor a run that ends: all leave it together.
        """
        state = self.state
        if not self._draining or state.phase not in (Phase.GATHERING, Phase.RUNNING):
            return False
        is_kept = state.notice is not None
        leaving = [i for i in self._draining if not (is_kept and state.is_awaited(i))]
        for incarnation in leaving:
            self._let_go(incarnation, now)
        return bool(leaving)

    def _let_go(self, incarnation: str, now: float) -> None:
        """Have a member leave as if it was lost. One that is excluded waits outside."""
        agent = self.state.members[incarnation]
        drain = self.drains.find(self.state.run_id, agent)
        presence = self.members.presences[incarnation]
        reason = "" if drain is None else who_and_why(drain)
        is_to_wait = drain is not None and drain.until_s is not None
        self.silent.heard(incarnation)  # its end explains no failure
        removed = rec.AgentRemoved(incarnation=incarnation, reason=reason, at_s=now)
        self._remove(replace(removed, is_drained=not is_to_wait))
        if presence.session_id is None:
            return
        alive = presence.beat.workers_alive
        self.departed.add(incarnation, presence.session_id, agent.name, workers_alive=alive)
        if drain is None or not is_to_wait:
            self._release(presence.session_id, reason)
            return
        opened = ev.SessionOpened(
            session_id=presence.session_id,
            run_id=self.state.run_id,
            spec=self.state.spec,
            agent=agent,
            beat=presence.beat,
            version=presence.version,
            labels=presence.labels,
            devices=presence.devices,
        )
        self.effects += self._outside.hold(opened, drain, now=now)

    def _release(self, session_id: str, reason: str) -> None:
        state = Release(reason=reason, is_drained=True)
        self.effects.append(fx.Direct(session_id=session_id, state=state))

    def _drain_of(self, event: ev.SessionOpened) -> KeptDrain | None:
        return self.drains.find(self.state.run_id, self._names.numbered(event.agent))

    def _has_left(self, event: ev.BeatReceived | ev.AgentLeft | ev.SessionClosed) -> bool:
        """Return whether it is of an agent that has left; one that was let go is told again.

        What it was told may be lost with a core that broke, or with a session.
        """
        incarnation, state = event.incarnation, self.state
        has_left = self.departed.take(event)
        if self._outside.take(event):
            return True
        if incarnation not in state.drained or incarnation in state.members:
            return has_left
        if isinstance(event, ev.BeatReceived):
            self._release(event.session_id, state.drained[incarnation])
        return True

    def _on_session_opened(self, event: ev.SessionOpened, now: float) -> None:
        incarnation, state = event.agent.incarnation, self.state
        is_member = incarnation in state.members
        if not is_member and incarnation in state.drained:
            self._note_departed(event)
            self._welcome(event.session_id)
            self._release(event.session_id, state.drained[incarnation])
            return
        if error := refusal(self.state, event, self.policy, workers=self._workers):
            self._reject(event.session_id, error)
            return
        drain = None if is_member else self._drain_of(event)
        if drain is None:
            self._enter(event, now)
            return
        self._note_departed(event)
        self._welcome(event.session_id)
        self.effects += self._outside.hold(event, drain, now=now)

    def _note_departed(self, event: ev.SessionOpened) -> None:
        """Note that one that was let go is back while it stops its workers."""
        if alive := event.beat.workers_alive:
            name, incarnation = event.agent.name, event.agent.incarnation
            self.departed.add(incarnation, event.session_id, name, workers_alive=alive)

    def _welcome(self, session_id: str, name: str = "") -> None:
        pace = self.members.pace
        self.effects.append(fx.Welcome(session_id=session_id, pace=pace, name=name))

    def _enter(self, event: ev.SessionOpened, now: float) -> None:
        """Let an agent in; one that waited outside was welcomed before, without its name."""
        incarnation, held = event.agent.incarnation, event.beat.round_id
        self.departed.discard(incarnation)
        seen = 0 if held is None else held + 1
        if (member := self.state.members.get(incarnation)) is not None:
            if seen > self.state.next_round_id and self.state.verdict is None:  # older journal
                self.decide(rec.AgentAdmitted(agent=member, rounds_seen=seen, at_s=now))
        else:
            agent = self._names.add(event.agent)
            self._workers += agent.local_world_size
            self.decide(rec.AgentAdmitted(agent=agent, rounds_seen=seen, at_s=now))
            self.members.latest_arrival = now
        replaced = self.members.attach(incarnation, event.session_id, now=now)
        presence = self.members.presences[incarnation]
        presence.version, presence.labels = event.version, event.labels
        presence.devices = event.devices
        if replaced is not None:
            # Perhaps not an older one: a hello that an agent gave up on may be read late.
            self._reject(replaced, SessionReplaced())
        self._phase.connected(incarnation, now=now)
        self._welcome(event.session_id, self.state.members[incarnation].name)
        if (limits := self.state.limits) is not None:
            self.effects.append(fx.TellLimits(session_id=event.session_id, limits=limits))
        self.tell([incarnation])
        self._take_beat(incarnation, event, now)

    def _on_session_closed(self, event: ev.SessionClosed, now: float) -> None:
        if self._has_left(event):
            return
        grace_s = self.policy.reconnect_grace_s
        # Perhaps all agents come back at once, as after a restart, or by way of others.
        if event.is_revoked or now < self._forgiving_until:
            grace_s = self.policy.return_grace_s(self.members.pace)
        if self.members.detach(event.incarnation, event.session_id, until=now + grace_s):
            self._phase.disconnected(event.incarnation, now=now)

    def _on_gap(self, event: ev.OutageEnded | ev.Deafened, now: float) -> None:
        """Take in that agents could not be heard, or could not come back."""
        has_cut_off = isinstance(event, ev.OutageEnded) and event.has_cut_off
        if self.policy.has_others or has_cut_off:
            self._forgiving_until = now + self.policy.forgiving_s
        if isinstance(event, ev.Deafened):
            self.members.stood_still(event.seconds)
            return
        until = now + self.policy.return_grace_s(self.members.pace)
        self.members.expect(list(self.members.missed), until=until)
        self._phase.resumed(now=now)

    def _on_report(self, event: ev.BeatReceived | ev.AgentLeft, now: float) -> None:
        """Take in what an agent says, unless its session counts no more."""
        if self._has_left(event):
            return
        presence = self.members.current(event.incarnation, event.session_id)
        if presence is None:
            error = StaleSession("it was replaced, or its lease is over")
            self._reject(event.session_id, error)
        elif isinstance(event, ev.BeatReceived):
            self._take_beat(event.incarnation, event, now)
        else:
            self.silent.heard(event.incarnation)
            incarnation, reason = event.incarnation, f"it left, {event.reason}"
            name, alive = self.state.members[incarnation].name, presence.beat.workers_alive
            self.departed.add(incarnation, event.session_id, name, workers_alive=alive)
            self._remove(rec.AgentRemoved(incarnation=incarnation, reason=reason, at_s=now))

    def _on_failure(self, event: ev.FailureReported, now: float) -> None:
        record, is_kept = event.record, False
        if is_wanted(self.state, record, incarnations_max=self.policy.incarnations_heard_max):
            sent_at = self.members.sent_at(record.incarnation, event.uptime_s, now=now)
            accepted = self.state.accepted(record, sent_at)
            what = taken(self.state, accepted, bytes_max=self.failures_bytes_max)
            is_kept = isinstance(what, rec.FailureRecorded)
            self.commit(what)
            self._phase.recorded(record.incarnation)
            self._take_suspicion(record, now)
        self.effects.append(fx.Answer(request_id=event.request_id, result=is_kept))

    def _take_suspicion(self, record: FailureRecord, now: float) -> None:
        """Take in which host a failed worker's exception accuses."""
        if record.suspect_rank is not None:
            reason, local_rank = record.message.partition("\n")[0], record.worker.local_rank
            accusation = Accusation(local_rank=local_rank, rank=record.suspect_rank, reason=reason)
            self._exclusions.accuse(record.incarnation, record.round_id, accusation, now=now)

    def _on_deadline(self, now: float) -> None:
        due = self.next_deadline()
        if due is not None and now - due > self.policy.stall_s:
            self.members.stood_still(now - due)
        for incarnation in self.members.pop_expired(now=now):
            session_id = self.members.presences[incarnation].session_id
            reason = self.members.why_over(incarnation)
            if session_id is not None:
                self._reject(session_id, StaleSession(reason))
            lost = rec.AgentRemoved(incarnation=incarnation, reason=reason, at_s=now, is_lost=True)
            self._remove(lost)
        if self._exclusions.readmit(now=now):
            self._let_in(None, now)
        if self.learning.due_at is not None and now >= self.learning.due_at:
            self._tell_limits()

    def _take_beat(
        self, incarnation: str, event: ev.SessionOpened | ev.BeatReceived, now: float
    ) -> None:
        beat = event.beat
        sent_at = self.members.sent_at(incarnation, event.uptime_s, now=now)
        is_hello = isinstance(event, ev.SessionOpened)
        presence = self.members.heard(
            incarnation, beat, sent_at=sent_at, now=now, is_hello=is_hello
        )
        self.silent.heard(incarnation)
        self._note_health(incarnation, now)
        if beat.master_port and not self.port_of(incarnation):
            presence.master_port_spent = beat.master_port
            self.tell([incarnation])
        self._phase.heard(incarnation, beat, sent_at=sent_at, now=now)
        for accusation in beat.accusations:
            self._exclusions.accuse(incarnation, beat.round_id, accusation, now=now)
        if beat.failure is not None:
            self._take_suspicion(beat.failure, now)

    def _note_health(self, incarnation: str, now: float) -> None:
        """Journal that a host became unhealthy, or healthy again, and tell its agent."""
        if self.state.verdict is not None:
            return
        name, health = self.state.members[incarnation].name, self.members.unfit.get(incarnation)
        known = self.state.observed.unhealthy
        if health is not None and health.state is HealthState.UNHEALTHY:
            self.tell([incarnation])
            if name not in known:
                self.decide(HealthNoted(name=name, reason=health.reason, at_s=now))
        elif health is None and name in known:
            self.tell([incarnation])
            self.decide(HealthNoted(name=name, at_s=now))

    def _remove(self, removed: rec.AgentRemoved) -> None:
        """Give a member up. In an ended run nothing depends on it any more."""
        incarnation, now = removed.incarnation, removed.at_s
        if (agent := self.state.members.get(incarnation)) is not None:
            self._names.discard(agent.name)
            self._workers -= agent.local_world_size
        presence = self.members.presences.get(incarnation)
        silent_since = now if presence is None else presence.silent_since
        self.members.observer.meter.lost(incarnation, silent_since=silent_since, now=now)
        self.members.forget(incarnation)
        self._draining.pop(incarnation, None)
        if self.state.phase is Phase.ENDED:
            return
        if self.state.is_killed(incarnation):
            removed = replace(removed, reason=f"rehearsed: {removed.reason}", is_lost=False)
        reason, returned = removed.reason, self.silent.take_back(incarnation)
        is_excused = self._phase.lost(incarnation, reason, was_silent=returned is not None, now=now)
        self.decide(replace(removed, is_excused=is_excused, restarts_returned=returned or 0))

    def _follow(self, transition: Transition, now: float) -> None:
        """Journal a transition, and begin the phase it leads to."""
        self.close_stretch(self._phase.stretch_end(transition), now=now)
        self.decide(transition)
        if self.state.phase is Phase.ENDED:
            self._draining = {}  # they leave with all others
        self.learning.due_at = None  # what was learned is told while a round runs, or as it ends
        if isinstance(transition, rec.RoundStarted):
            leader = self.members.presences[transition.participants[0]]
            is_its_own = not self.state.spec.master_port
            leader.master_port_spent = transition.master_port if is_its_own else 0
        elif isinstance(transition, rec.RoundEnded):
            self.learning.end_round()
            self._tell_limits()
        self.members.observer.leave_round()
        self._phase = PHASES[self.state.phase](self, now=now)
        self.tell_all()

    def _note(self, kind: rec.CallKind, reason: str, caller: str, now: float) -> None:
        """Journal what a caller did. Who serves callers logs it."""
        self.commit(rec.CallNoted(kind=kind, reason=reason, caller=caller, at_s=now))

    def _reject(self, session_id: str, error: CoordinatorError) -> None:
        self.effects.append(fx.Reject(session_id=session_id, error=error))

    def _tell_limits(self) -> None:
        """Journal what has been learned and tell it to all, if that is news. Linear in members."""
        limits, before = self.learning.limits(), self.state.limits or ()
        if limits == before:
            return
        self.commit(rec.LimitsLearned(limits=limits))
        in_force, known = ({at.section: at.limit_s for at in those} for those in (limits, before))
        if in_force != known:  # agents go by nothing else
            sessions = self.members.sessions()
            self.effects += [fx.TellLimits(session_id=i, limits=limits) for i in sessions]


def _expected(state: RunState) -> int:
    """Return how many agents the run has, or will have when its first round begins."""
    return max(len(state.members), state.spec.agents_min)
