"""Pure. One run: who is in it, which round it is in, when it restarts, how it ends.

Every change of the durable state goes through ``_commit``, which journals it. What follows from
it is decided in ``_settle``, by looking at the state and not at the event.
"""

from __future__ import annotations

import math
from typing import assert_never

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.failures.intake import is_wanted, taken
from coordinator.core.failures.verdict import make_verdict
from coordinator.core.inprocess.history import WAITING, told
from coordinator.core.inprocess.run_part import Iterating
from coordinator.core.membership.admission import Names, refusal
from coordinator.core.membership.leases import Membership
from coordinator.core.membership.pace import PaceRules, RunPace
from coordinator.core.model import GroupState
from coordinator.core.phases import running
from coordinator.core.phases.ending import EndingWatch, verdict_wanted_until
from coordinator.core.phases.gathering import GatheringWatch, Leading, Lineup
from coordinator.core.phases.rendezvous import Close, GiveUp, Wait
from coordinator.core.phases.running import RoundWatch
from coordinator.core.progress.adaptive_timeouts import Learning, differ
from coordinator.core.run import reasons
from coordinator.core.run import records as rec
from coordinator.core.run.policy import RunPolicy
from coordinator.core.run.publisher import Telling
from coordinator.core.run.records import Record, RoundEnd
from coordinator.core.run.state import Phase, RunState
from coordinator.errors import CoordinatorError, SessionReplaced, StaleSession


class Run:
    """The core of one run. Not thread-safe; one owner calls it."""

    def __init__(self, state: RunState, *, policy: RunPolicy, pace: PaceRules, now: float) -> None:
        self.state = state
        self._pace = RunPace(pace, agents=len(state.members))  # who may all return at once
        self.members = Membership(self._pace.pace)
        self.failures_bytes_max = policy.failures_bytes_max
        self._policy = policy
        self._effects: list[fx.Effect] = []
        self._gathering = GatheringWatch(state, self.members, now=now)
        self._leading = Leading(state, self.members)
        self._learning = Learning(policy.learning, state.limits or ())
        self._ending = EndingWatch(state, self.members, policy, now=now)
        every_s = policy.progress_interval_s
        telling = self._telling = Telling(self.members, progress_interval_s=every_s)
        self._iterating = Iterating(
            state, self.members, self._leading, telling, progress_interval_s=every_s
        )
        self._round_watch = RoundWatch(state, self.members, policy, self._iterating)
        self._wait: Wait | None = None
        self._review_at: float | None = None
        self._names = Names(state.members.values())
        self._restore(now)

    @staticmethod
    def create(
        record: rec.RunCreated, *, policy: RunPolicy, pace: PaceRules, now: float
    ) -> tuple[Run, list[fx.Effect]]:
        """Return a new run and the effect that journals its birth."""
        run = Run(RunState.created(record), policy=policy, pace=pace, now=now)
        return run, [fx.Persist(run_id=run.state.key, record=record)]

    def _restore(self, now: float) -> None:
        """Derive what is not durable from what is: everybody is missed until heard."""
        state = self.state
        if state.phase is Phase.ENDED:
            self._review_at = now if state.members else None
            return
        self._review_at = now  # what the last life had not decided yet, also with no member left
        self.members.remember(
            state.members, until=now + self._policy.return_grace_s(self.members.pace)
        )
        if state.phase is Phase.RUNNING and state.round is not None:
            self._round_watch.resume(now=now)
            self._iterating.resume(now=now)
        elif state.phase is Phase.ENDING:
            self._ending.resume()

    def handle(self, event: ev.CoreEvent, *, now: float) -> list[fx.Effect]:
        """Take one event in at ``now`` (seconds, the coordinator's clock)."""
        if isinstance(event, ev.BeatReceived) and self.takes_quietly(event, now=now):
            return []
        judged_at = self._judged_at(event, now)
        match event:
            case ev.SessionOpened():
                self._on_session_opened(event, now)
            case ev.BeatReceived():
                self._on_beat(event, now)
            case ev.AgentLeft():
                self._on_agent_left(event, now)
            case ev.SessionClosed():
                self._on_session_closed(event, now)
            case ev.FailureReported():
                self._on_failure(event, now)
            case ev.LimitsReset() | ev.RunSuperseded():
                self._on_command(event, now)
            case ev.DeadlineReached():
                self._on_deadline(now)
            case ev.OutageEnded():
                self.members.expect_missed(
                    until=now + self._policy.return_grace_s(self.members.pace)
                )
            case _:
                assert_never(event)
        self._settle(now, judged_at)
        released = self._round_watch.barrier.released
        self._effects += self._telling.effects(self.state, self._wait, released, now=now)
        if self._iterating.is_watching:
            self._effects += self._iterating.effects()
        if (pace := self._pace.follow(len(self.members.presences))) is not None:
            self._effects += self._telling.pace(pace)
        done, self._effects = self._effects, []
        return done

    def takes_quietly(self, event: ev.BeatReceived, *, now: float) -> bool:
        """Take in a beat from which nothing follows, and return whether it was one."""
        return self.members.takes_quietly(event, awaited=self._round_watch.unheard, now=now)

    def next_deadline(self) -> float | None:
        """Return when ``DeadlineReached`` is due, ``None`` if nothing is awaited."""
        due = self.members.next_deadline()
        for instant in (self._review_at, self._telling.progress_at, self._learning.due_at):
            if instant is not None and (due is None or instant < due):
                due = instant
        return due

    def check_invariants(self) -> None:
        """Assert what must hold between events. Linear in agents; for tests."""
        state, current, members = self.state, self.state.round, self.members
        state.check_invariants()
        members.check_invariants()
        if state.phase is Phase.RUNNING and current is not None:
            self._round_watch.check_invariants(current)
            self._iterating.check_invariants()

    def reason(self) -> str:
        """Return why the run is as it is."""
        if self._wait is not None:
            return self._wait.reason
        iterations = self.state.iterations if self.state.phase is Phase.RUNNING else None
        return (iterations.reason if iterations is not None else "") or self.state.reason

    # Events.

    def _on_session_opened(self, event: ev.SessionOpened, now: float) -> None:
        if error := refusal(self.state, event, agents_max=self._policy.agents_max):
            self._reject(event.session_id, error)
            return
        incarnation = event.agent.incarnation
        if incarnation not in self.state.members:
            agent, seen = self._names.admit(event.agent), event.beat.rounds_seen
            self._decide(rec.AgentAdmitted(agent=agent, rounds_seen=seen, at_s=now))
            self._gathering.latest_arrival = now
            self._note_change(now)
        replaced = self.members.attach(incarnation, event.session_id, now=now)
        if replaced is not None:
            # Perhaps not an older one: a hello that an agent gave up on may be read late.
            self._reject(replaced, SessionReplaced())
        self._round_watch.note_connected(incarnation)
        self._effects.append(fx.Welcome(session_id=event.session_id, pace=self.members.pace))
        if self.state.limits is not None:
            limits = fx.TellLimits(session_id=event.session_id, limits=self.state.limits)
            self._effects.append(limits)
        self._telling.one(incarnation)
        self._iterating.connected(incarnation)
        self._take_beat(incarnation, event, now)

    def _on_beat(self, event: ev.BeatReceived, now: float) -> None:
        if self._is_current(event.incarnation, event.session_id):
            self._take_beat(event.incarnation, event, now)

    def _on_agent_left(self, event: ev.AgentLeft, now: float) -> None:
        if self._is_current(event.incarnation, event.session_id):
            self._round_watch.unheard.pop(event.incarnation, None)
            self._remove(event.incarnation, f"it left, {event.reason}", now)

    def _on_session_closed(self, event: ev.SessionClosed, now: float) -> None:
        until = now + self._policy.reconnect_grace_s
        if self.members.detach(event.incarnation, event.session_id, until=until):
            self._round_watch.extras.discard(event.incarnation)
            self._note_change(now)
            if self.state.phase is Phase.ENDED:
                self.members.forget(event.incarnation)

    def _on_failure(self, event: ev.FailureReported, now: float) -> None:
        record = event.record
        is_kept = False
        if is_wanted(self.state, record, incarnations_max=self._policy.incarnations_heard_max):
            sent_at = self.members.sent_at(record.incarnation, event.uptime_s, now=now)
            accepted = self.state.accepted(record, sent_at)
            what = taken(self.state, accepted, bytes_max=self.failures_bytes_max)
            is_kept = isinstance(what, rec.FailureRecorded)
            self._commit(what)
            self._ending.note(record.incarnation)
        self._effects.append(fx.AcknowledgeFailure(request_id=event.request_id, is_kept=is_kept))

    def _on_command(self, event: ev.LimitsReset | ev.RunSuperseded, now: float) -> None:
        if isinstance(event, ev.RunSuperseded):
            self._end(is_success=False, reason=event.reason, now=now)
            return
        forgotten = len(self.state.limits or ())
        self._learning.forget()
        self._tell_limits()
        self._effects.append(fx.AnswerReset(request_id=event.request_id, forgotten=forgotten))

    def _on_deadline(self, now: float) -> None:
        due = self.next_deadline()
        if due is not None and now - due > self._policy.stall_s:
            self.members.stood_still(now - due)
        for expiry in self.members.pop_expired(now=now):
            if expiry.session_id is not None:
                self._reject(expiry.session_id, StaleSession(expiry.reason))
            self._remove(expiry.incarnation, expiry.reason, now)
        self._telling.progress_if_due(now)
        if self._learning.due_at is not None and now >= self._learning.due_at:
            self._tell_limits()

    def _is_current(self, incarnation: str, session_id: str) -> bool:
        """Return whether a message is of a session that counts; refuse it if not."""
        if self.members.current(incarnation, session_id) is not None:
            return True
        self._reject(session_id, StaleSession("it was replaced, or its lease is over"))
        return False

    def _take_beat(
        self, incarnation: str, event: ev.SessionOpened | ev.BeatReceived, now: float
    ) -> None:
        beat = event.beat
        sent_at = self.members.sent_at(incarnation, event.uptime_s, now=now)
        presence = self.members.heard(incarnation, beat, now=now)
        self._round_watch.unheard.pop(incarnation, None)
        if beat.master_port and not self._leading.port_of(incarnation):
            presence.master_port_spent = beat.master_port
            self._telling.one(incarnation)
        self._ending.note(incarnation)
        current = self.state.round
        if self.state.phase is not Phase.RUNNING or current is None:
            return
        if beat.round_id != current.round_id or incarnation not in current.seats:
            return  # of an earlier round: the agent will hear of this one
        if incarnation in self.state.given_up:
            return  # the round goes on without it, whatever it says
        if beat.observations:
            self._learning.observe(beat.observations, now=now)
        if beat.inprocess is not None:
            self._iterating.reported(incarnation, beat.inprocess, now=now)
        if beat.workers_done:
            self._round_watch.done[incarnation] = beat.workers_done
        if beat.state is GroupState.FAILED:
            if incarnation not in self.state.excused:
                self._round_watch.failed.add(incarnation)
            if beat.failure is not None:
                presence.failure = self.state.accepted(beat.failure, sent_at)
        elif beat.state is GroupState.SUCCEEDED and self.state.is_awaited(incarnation):
            self._commit(rec.GroupSucceeded(round_id=current.round_id, incarnation=incarnation))
            self._round_watch.barrier.note_success(incarnation, now=now)
            self._iterating.finished(incarnation)

    def _remove(self, incarnation: str, reason: str, now: float) -> None:
        """Give a member up. In an ended run nothing depends on it any more."""
        self._names.free(self.state.members.get(incarnation))
        self.members.forget(incarnation)
        self._round_watch.forget(incarnation)
        self._ending.forget(incarnation)
        if self.state.phase is Phase.ENDED:
            return
        is_excused = self._iterating.lost(incarnation, reason)
        returned = self._round_watch.take_back(incarnation)
        self._decide(
            rec.AgentRemoved(
                incarnation=incarnation,
                reason=reason,
                at_s=now,
                is_excused=is_excused,
                restarts_returned=returned or 0,
            )
        )
        if returned is not None and self.state.phase is Phase.ENDING:
            self._go_on(incarnation, now)
        if self.state.is_awaited(incarnation):
            self._round_watch.lost.add(incarnation)
        self._note_change(now)

    def _note_change(self, now: float) -> None:
        """While gathering, let the others know before long that somebody came or went."""
        if self.state.phase is Phase.GATHERING:
            self._telling.schedule_progress(now)

    # Decisions.

    def _judged_at(self, event: ev.CoreEvent, now: float) -> float:
        """Return the instant by which to judge: no timeout is over before its deadline is due.

        Deadlines come when nothing waits to be read any more. A coordinator that stood
        still reads late what was said in time, and more of it may follow.
        """
        due = self._review_at
        if due is None or isinstance(event, ev.DeadlineReached) or now < due:
            return now
        return math.nextafter(due, -math.inf)

    def _settle(self, now: float, judged_at: float) -> None:
        """Do all that follows from the state as it is now."""
        self._review_at = None
        if self.state.phase is Phase.RUNNING:
            self._review_round(now, judged_at)
        if self.state.phase is Phase.GATHERING:
            self._review_gathering(now, judged_at)
        if self.state.phase is Phase.ENDING:
            self._review_ending(now, judged_at)
        if self.state.phase is Phase.ENDED:
            self._review_ended(judged_at)

    def _review_round(self, now: float, judged_at: float) -> None:
        current = self.state.round
        assert current is not None, "running without a round"
        if self._iterating.is_watching:
            self._review_iterations(now)
        arrival = self._gathering.latest_arrival
        match self._round_watch.review(current, latest_arrival=arrival, now=judged_at):
            case running.RoundGoesOn(until, waits, released):
                self._await_decision(waits)
                self._telling.some(released)
                instants = (until, self._iterating.next_deadline())
                self._review_at = min((at for at in instants if at is not None), default=None)
            case running.RunSucceeds(reason):
                self._end(is_success=True, reason=reason, now=now)
            case running.RunFails() as outcome:
                self._start_ending(outcome, now)
            case running.RoundIsOver() as outcome:
                self._end_round(outcome, now)

    def _await_decision(self, waits: Wait | None) -> None:
        """Show what a decision waits for, and tell it once."""
        if waits is not None and self._wait is None:
            self._tell_decision("decision waits", waits.reason)
        if waits is not None or not self._iterating.is_watching:
            self._wait = waits

    def _review_iterations(self, now: float) -> None:
        """Journal what follows for the workers that restart in process, if any do."""
        while (record := self._iterating.next_record(now=now)) is not None:
            self._commit(record)
            self._iterating.noted(record, now=now)
            self._tell_decision(*told(record))
        self._wait = self._iterating.wait
        if (progress := self._iterating.progress(now=now)) is not None:
            self._tell_decision(WAITING, progress)
            for incarnation in self._round_watch.extras:
                self._telling.one(incarnation)

    def _review_gathering(self, now: float, judged_at: float) -> None:
        match self._gathering.review(now=judged_at):
            case Close(reason):
                self._close_round(reason, now, judged_at)
            case GiveUp(reason):
                self._end(is_success=False, reason=reason, now=now)
            case Wait() as wait:
                self._wait, self._review_at = wait, wait.until

    def _review_ending(self, now: float, judged_at: float) -> None:
        self._review_at = self._ending.review(self._round_watch.unheard, now=judged_at)
        if self._review_at is None:
            current = self.state.round
            causes = self._round_watch.causes(current) if current else []
            reason = reasons.run_failed(self.state.reason, causes, self.state.where)
            self._end(is_success=False, reason=reason, now=now)

    def _review_ended(self, judged_at: float) -> None:
        """Forget the members once none of them can come for the verdict any more."""
        self._review_at = verdict_wanted_until(self.state, self._policy)
        if self._review_at is not None and judged_at >= self._review_at:
            self._review_at = None
            self._commit(rec.MembersForgotten())

    # Transitions.

    def _close_round(self, reason: str, now: float, judged_at: float) -> None:
        """Start a round now, or as soon as its leader holds a port."""
        match self._leading.lineup(now=judged_at):
            case GiveUp(why):
                self._end(is_success=False, reason=why, now=now)
            case Wait() as wait:
                self._wait, self._review_at = wait, wait.until
            case Lineup() as lineup:
                self._start_round(lineup, reason, now)

    def _start_round(self, lineup: Lineup, reason: str, now: float) -> None:
        spec, round_id = self.state.spec, self.state.next_round_id
        self._decide(
            rec.RoundStarted(
                round_id=round_id,
                participants=tuple(agent.incarnation for agent in lineup.order),
                master_addr=spec.master_addr or lineup.leader.address,
                master_port=lineup.port,
                reason=self.state.reason if round_id else reason,
                closing=reason,
                at_s=now,
            )
        )
        leader = self.members.presences[lineup.leader.incarnation]
        leader.master_port_spent = 0 if spec.master_port else lineup.port
        self._leading.forget()
        self._round_watch.begin()
        self._wait = None
        self._telling.everyone()

    def _go_on(self, lost: str, now: float) -> None:
        """Take back that the run fails: a machine was lost before the failure that decided it."""
        current = self.state.round
        assert current is not None, "a run without a round fails at once"
        reason = reasons.lost_before(current, lost, self.state.reason)
        self._end_round(running.RoundIsOver(cause=RoundEnd.AGENT_LOST, reason=reason), now)

    def _end_round(self, outcome: running.RoundIsOver, now: float) -> None:
        current = self.state.round
        assert current is not None, "no round to end"
        if outcome.cause is RoundEnd.WORKER_FAILED:
            self._round_watch.note_unheard(current, charged=1)
        count = self.state.restart_count + (outcome.cause is RoundEnd.WORKER_FAILED)
        record = rec.RoundEnded(
            round_id=current.round_id,
            cause=outcome.cause,
            restart_count=count,
            reason=outcome.reason,
            at_s=now,
            where=outcome.where,
        )
        self._decide(record)
        self._learning.end_round()
        self._tell_limits()
        self._gathering.begin(now=now)
        self._leading.forget()
        self._round_watch.end()
        self._iterating.end()
        self._wait = None
        self._telling.everyone()

    def _start_ending(self, outcome: running.RunFails, now: float) -> None:
        current = self.state.round
        assert current is not None, "a run without a round fails at once"
        self._round_watch.note_unheard(current, charged=0)
        self._decide(rec.EndingStarted(reason=outcome.reason, at_s=now, where=outcome.where))
        self._learning.due_at = None  # there is no round left that could use it
        self._ending.begin(now=now)
        self._iterating.end()
        self._wait = None
        self._telling.everyone()

    def _end(self, *, is_success: bool, reason: str, now: float) -> None:
        watch = self._round_watch
        verdict = make_verdict(
            self.state, watch.failures(), watch.done, is_success=is_success, reason=reason
        )
        self._decide(rec.RunEnded(verdict=verdict, at_s=now))
        self._iterating.end()
        self._wait = self._telling.progress_at = self._learning.due_at = None
        self._telling.everyone()
        for incarnation in list(self.members.missed):
            self.members.forget(incarnation)

    # Effects.

    def _commit(self, record: Record) -> None:
        self.state.apply(record)
        self._effects.append(fx.Persist(run_id=self.state.key, record=record))

    def _tell_limits(self) -> None:
        """Journal what has been learned and tell it to all, if that is news. Linear in members."""
        limits, before = self._learning.limits(), self.state.limits or ()
        if limits == before:
            return
        self._commit(rec.LimitsLearned(limits=limits))
        if differ(limits, before):
            sessions = self.members.sessions()
            self._effects += [fx.TellLimits(session_id=i, limits=limits) for i in sessions]

    def _reject(self, session_id: str, error: CoordinatorError) -> None:
        self._effects.append(fx.Reject(session_id=session_id, error=error))

    def _decide(self, record: Record) -> None:
        """Commit a record that people call a decision, and tell them as the history does."""
        self._commit(record)
        entry = self.state.history[-1]
        self._tell_decision(entry.decision, entry.reason)

    def _tell_decision(self, decision: str, reason: str) -> None:
        run_id, round_id = self.state.run_id, self.state.round_id
        self._effects.append(
            fx.Decided(run_id=run_id, decision=decision, reason=reason, round_id=round_id)
        )
