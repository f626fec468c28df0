"""Pure. A running round: who failed, was lost or came late, and what follows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from coordinator.core.effects import Instruct
from coordinator.core.failures.intake import known_failures
from coordinator.core.failures.root_cause import root_causes
from coordinator.core.inprocess.restarts import InProcessRestarts
from coordinator.core.model import Beat, FailureRecord, GroupState, VerdictCause
from coordinator.core.phases.context import RunContext
from coordinator.core.phases.exit_barrier import ExitBarrier
from coordinator.core.phases.phase import End, EndRound, Fail, RunPhase
from coordinator.core.phases.rendezvous import Wait, last_call_deadline
from coordinator.core.progress.stragglers import standings
from coordinator.core.progress.worker_progress import Standings
from coordinator.core.run import reasons
from coordinator.core.run.records import GroupSucceeded, RoundEnd


class Running(RunPhase):
    """Waits for the round to succeed, to fail or to lose an agent.

    ``_failed`` are participants whose group failed, ``_lost`` those given up before they
    succeeded, ``_extras`` connected members that are not in the round.
    """

    def __init__(self, run: RunContext, *, now: float, done: dict[str, int]) -> None:
        super().__init__(run, now=now, done={})
        assert run.state.round is not None, "running without a round"
        state, members = run.state, run.members
        self._round = run.state.round
        self._failed: set[str] = set()
        self._lost = state.lost_participants()
        self._extras = members.connected - (self._round.seats.keys() - state.given_up)
        self._barrier = ExitBarrier(state, now=now)
        self.released = self._barrier.released
        self._inprocess = InProcessRestarts(run, self._round, now=now)
        self._extra_since: float | None = None
        self._undecided: Wait | None = None  # what a failure waits for before it is judged

    def connected(self, incarnation: str) -> None:
        if not self.state.is_seated(incarnation):
            self._extras.add(incarnation)
        self._inprocess.connected(incarnation)

    def disconnected(self, incarnation: str, *, now: float) -> None:
        self._extras.discard(incarnation)

    def heard(self, incarnation: str, beat: Beat, *, sent_at: float, now: float) -> None:
        """Take in what a participant says of this round; of another it will hear of this one."""
        state = self.state
        if beat.round_id != self._round.round_id or not state.is_seated(incarnation):
            return
        if beat.observations:
            self.run.learning.observe(beat.observations, now=now)
        if beat.inprocess is not None:
            self._inprocess.reported(incarnation, beat.inprocess, now=now)
        if beat.workers_done:
            self.done[incarnation] = beat.workers_done
        if beat.state is GroupState.FAILED:
            if incarnation not in state.excused:
                self._failed.add(incarnation)
            if beat.failure is not None:
                presence = self.members.presences[incarnation]
                presence.failure = state.accepted(beat.failure, sent_at)
        elif beat.state is GroupState.SUCCEEDED and state.is_awaited(incarnation):
            round_id = self._round.round_id
            self.run.commit(GroupSucceeded(round_id=round_id, incarnation=incarnation))
            self._barrier.succeeded(incarnation, now=now)
            self._inprocess.finished(incarnation)

    def lost(self, incarnation: str, reason: str, *, now: float) -> bool:
        self._extras.discard(incarnation)
        self._failed.discard(incarnation)
        self._barrier.lost(incarnation)
        is_excused = self._inprocess.lost(incarnation, reason)
        if self.state.is_awaited(incarnation) and not is_excused:
            self._lost.add(incarnation)
        return is_excused

    def instructions(self) -> list[Instruct]:
        return self._inprocess.instructions()

    def check_invariants(self) -> None:
        assert self._lost == self.state.lost_participants(), "lost participants are not noted"
        extras = self.members.connected - (self._round.seats.keys() - self.state.given_up)
        assert self._extras == extras, "extras are not noted"
        self._inprocess.check_invariants()

    def review(self, *, now: float, judged_at: float) -> End | Fail | EndRound | None:
        """Journal what follows for iterations, then judge the round."""
        inprocess, state = self._inprocess, self.state
        self.wait, self.review_at = inprocess.review(now=now), inprocess.review_at
        if state.succeeded and len(state.succeeded) + len(state.excused) == len(self._round.seats):
            lost = state.iterations.lost if state.iterations is not None else 0
            reason = reasons.all_succeeded(self._round, state.excused, lost)
            return End(cause=VerdictCause.SUCCEEDED, reason=reason)
        if self._failed and (unable := self._unable()):
            reason = reasons.start_impossible(self._round, self._causes(), unable)
            return Fail(reason, self._where(judged_at), VerdictCause.START_IMPOSSIBLE)
        if self._lost:
            reason = reasons.round_lost(self._round, self._lost)
            return EndRound(cause=RoundEnd.AGENT_LOST, reason=reason)
        if self._failed or inprocess.give_up is not None:
            return self._review_failure(judged_at)
        if self._barrier.deadline() is not None:
            self.run.publisher.some(self._barrier.release(self._round, now=judged_at))
            self._review_until(self._barrier.deadline())
            return None
        return self._review_scale_up(judged_at)

    def _review_until(self, until: float | None) -> None:
        if until is not None:
            self.review_at = until if self.review_at is None else min(until, self.review_at)

    def _causes(self) -> list[FailureRecord]:
        """Return what explains the failure of the round, as far as it is known. Linear."""
        return root_causes(known_failures(self.state, self.members), self._round.round_id)

    def _unable(self) -> list[str]:
        """Return failed members that can't start the command; no restart would help."""
        presences, founders = self.members.presences, self.state.founders
        return [i for i in self._failed & founders if presences[i].beat.is_start_impossible]

    def _review_failure(self, now: float) -> Fail | EndRound | None:
        """Judge a failed group, once it is known whether a machine died before it.

        A machine's death makes workers elsewhere fail, before its own lease is over.
        """
        self.failed_since = now if self.failed_since is None else self.failed_since
        until = self.failed_since + self.run.policy.restart_grace_s
        if now < until and any(self._unsure()):
            if self._undecided is None:
                self._undecided = self._await_certainty(until)
                self.run.log("decision waits", self._undecided.reason)
            self.wait = self._undecided
            self._review_until(until)
            return None
        if (why := self._inprocess.give_up) is not None:
            return self._review_give_up(why, now)
        where = self._where(now)
        what = reasons.round_failed(self._round, self._causes(), self._failed, where)
        return self._after_failure(what, where)

    def _unsure(self) -> Iterator[str]:
        """Find participants that may be lost: their stream broke, or they are silent."""
        unsure = itertools.chain(self.members.missed, self.members.suspects)
        return (incarnation for incarnation in unsure if incarnation in self._round.seats)

    def _await_certainty(self, until: float) -> Wait:
        """Say what a failure waits for. Linear, so not at every beat meanwhile."""
        unsure = list(self._unsure())
        reason = reasons.undecided(self._round, self._causes(), self._failed, unsure)
        return Wait(reason=reason, agents_wanted=0, until=until)

    def _review_give_up(self, why: str, now: float) -> Fail | EndRound:
        """Judge a round that can't go on in process: it failed, unless no agent is left."""
        if len(self.state.given_up) == len(self._round.seats):
            reason = reasons.all_lost(self._round, why)
            return EndRound(cause=RoundEnd.AGENT_LOST, reason=reason)
        what = reasons.iterations_over(self._round, why, self._causes())
        return self._after_failure(what, self._where(now))

    def _after_failure(self, what: str, where: Standings) -> Fail | EndRound:
        """Charge a failed round to the budget."""
        state = self.state
        allowed, used = state.spec.restarts_max, state.restarts_used
        in_process = state.iterations_restarted
        reason = reasons.restart(what, used=used, allowed=allowed, in_process=in_process)
        if used < allowed:
            return EndRound(cause=RoundEnd.WORKER_FAILED, reason=reason, where=where)
        return Fail(reason, where)

    def _where(self, now: float) -> Standings:
        limit = self.run.policy.standings_shown_max
        presences, rank_of = self.members.presences, self._inprocess.rank_of
        return standings(self._round, presences, rank_of=rank_of, shown_max=limit, now=now)

    def _review_scale_up(self, now: float) -> EndRound | None:
        """End the round for agents that came late, if there is room and none has finished."""
        spec, size, suspects = self.state.spec, len(self._round.seats), self.members.suspects
        extras = len(self._extras) - len(self._extras & suspects)
        if not extras or size >= spec.agents_max or self.state.succeeded:
            self._extra_since = None
            return None
        self._extra_since = now if self._extra_since is None else self._extra_since
        latest = self.members.latest_arrival
        due = last_call_deadline(spec, first=self._extra_since, latest=latest)
        if size + extras < spec.agents_max and now < due:
            self._review_until(due)
            return None
        reason = f"{extras} more joined the {size} of the round"
        return EndRound(cause=RoundEnd.AGENT_JOINED, reason=reason)
