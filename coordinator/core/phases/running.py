"""Pure. What a running round comes to: who failed, was lost or came late, and what follows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from coordinator.core.failures.root_cause import root_causes
from coordinator.core.inprocess.run_part import Iterating
from coordinator.core.membership.leases import Membership
from coordinator.core.model import FailureRecord, Round
from coordinator.core.phases.exit_barrier import ExitBarrier
from coordinator.core.phases.rendezvous import Wait, last_call_deadline
from coordinator.core.progress.stragglers import standings
from coordinator.core.progress.worker_progress import NOWHERE, Standings
from coordinator.core.run import reasons
from coordinator.core.run.policy import RunPolicy
from coordinator.core.run.records import RoundEnd
from coordinator.core.run.state import RunState


@dataclass(frozen=True, slots=True)
class RunSucceeds:
    """Every participant's workers exited with 0."""

    reason: str


@dataclass(frozen=True, slots=True)
class RunFails:
    """No further round would help, or none is allowed. ``where`` is who was where."""

    reason: str
    where: Standings


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundIsOver:
    """The run has to gather for another round. ``where`` is who was where, if a worker failed."""

    cause: RoundEnd
    reason: str
    where: Standings = NOWHERE


@dataclass(frozen=True, slots=True)
class RoundGoesOn:
    """Nothing yet; look again at ``until`` if nothing happens before (``None``: never).

    ``waits`` says what a decision that is due waits for. ``released`` are participants that
    need not wait for the others any more, with the reason.
    """

    until: float | None = None
    waits: Wait | None = None
    released: Mapping[str, str] = field(default_factory=dict)


_GOES_ON = RoundGoesOn()  # the answer at nearly every beat

Outcome = RunSucceeds | RunFails | RoundIsOver | RoundGoesOn


class RoundWatch:
    """Notes what befalls the participants of the current round, and judges it.

    ``failed`` are participants whose group failed; ``lost`` those given up before
    they succeeded; ``extras`` connected members that are not in the round; ``done``
    how many workers of a participant exited with 0 before they were told to stop.
    ``unheard`` are participants of the round that failed last which were not heard
    since, each with the restarts charged meanwhile.
    """

    def __init__(
        self, state: RunState, members: Membership, policy: RunPolicy, iterating: Iterating
    ) -> None:
        self.failed: set[str] = set()
        self.lost: set[str] = set()
        self.extras: set[str] = set()
        self.done: dict[str, int] = {}
        self.unheard: dict[str, int] = {}
        self._state = state
        self._members = members
        self._policy = policy
        self._iterating = iterating
        self.barrier = ExitBarrier(state)
        # Instants from which timeouts count.
        self._failed_since: float | None = None
        self._extra_since: float | None = None
        # What a failure waits for before it is judged.
        self._undecided: Wait | None = None

    def begin(self) -> None:
        """Start anew with the round that has just started. Linear in members."""
        self.failed, self.lost, self.done = set(), set(), {}
        self.extras = self._members.connected - self._state.group_ranks().keys()
        self.barrier.clear()
        self._failed_since = self._extra_since = None
        self._undecided = None

    def resume(self, *, now: float) -> None:
        """Go on with the round of an earlier life of the coordinator."""
        self.lost = self._state.lost_participants()
        self.barrier.resume(now=now)

    def end(self) -> None:
        """Forget who failed and who was lost: the round is over."""
        self.failed, self.lost = set(), set()
        self.barrier.clear()

    def note_connected(self, incarnation: str) -> None:
        """Take in that a member has a session."""
        if not self._state.is_seated(incarnation):
            self.extras.add(incarnation)

    def forget(self, incarnation: str) -> None:
        """Drop what is noted of a member."""
        self.extras.discard(incarnation)
        self.failed.discard(incarnation)
        self.barrier.forget(incarnation)

    def check_invariants(self, current: Round) -> None:
        """Assert what must hold between events while ``current`` runs; for tests."""
        assert self.lost == self._state.lost_participants(), "lost participants are not noted"
        extras = self._members.connected - (current.seats.keys() - self._state.given_up)
        assert self.extras == extras, "extras are not noted"

    def failures(self) -> list[FailureRecord]:
        """Return the failures that count, those whose records are under way in short. Linear."""
        heard, known = self._state.failures_heard, self._state.counted_failures()
        told = (p.failure for p in self._members.presences.values() if p.failure is not None)
        return known + [r for r in told if r.sequence > heard.get(r.incarnation, 0)]

    def causes(self, current: Round) -> list[FailureRecord]:
        """Return what explains the failure of the round, as far as it is known. Linear."""
        return root_causes(self.failures(), current.round_id)

    def note_unheard(self, current: Round, *, charged: int) -> None:
        """Note participants that perhaps were lost before the round failed. Linear."""
        since, presences = self._failed_since, self._members.presences
        silent = [
            i
            for i in current.seats.keys() & presences.keys()
            if since is not None and presences[i].silent_since < since
        ]
        self.unheard = {i: self.unheard.get(i, 0) + charged for i in silent}

    def take_back(self, incarnation: str) -> int | None:
        """Return the restarts that the loss of this agent gives back.

        ``None`` if it was heard after the latest failure. What is given back once
        is not given back for another agent.
        """
        returned = self.unheard.get(incarnation)
        if returned is not None:
            self.unheard.clear()
        return returned

    def review(self, current: Round, *, latest_arrival: float, now: float) -> Outcome:
        """Judge the round as it is at ``now``."""
        state = self._state
        if state.succeeded and len(state.succeeded) + len(state.excused) == len(current.seats):
            lost = state.iterations.lost if state.iterations is not None else 0
            return RunSucceeds(reasons.all_succeeded(current, state.excused, lost))
        if self.failed and (unable := self._unable()):
            reason = reasons.start_impossible(current, self.causes(current), unable)
            return RunFails(reason, self._where(current, now))
        if self.lost:
            reason = reasons.round_lost(current, self.lost)
            return RoundIsOver(cause=RoundEnd.AGENT_LOST, reason=reason)
        if self.failed or self._iterating.give_up is not None:
            return self._review_failure(current, now)
        if self.barrier.deadline() is not None:
            released = self.barrier.release(current, now=now)
            return RoundGoesOn(self.barrier.deadline(), released=released)
        return self._review_scale_up(current, latest_arrival, now)

    def _unable(self) -> list[str]:
        """Return failed members that can't start the command; no restart would help."""
        presences = self._members.presences
        founders = self._state.founders
        return [i for i in self.failed & founders if presences[i].beat.is_start_impossible]

    def _review_failure(self, current: Round, now: float) -> Outcome:
        """Judge a failed group, once it is known whether a machine died before it.

        A machine's death makes workers elsewhere fail, before its own lease is over.
        """
        self._failed_since = now if self._failed_since is None else self._failed_since
        until = self._failed_since + self._policy.restart_grace_s
        if now < until and any(self._unsure(current)):
            self._undecided = self._undecided or self._await_certainty(current, until)
            return RoundGoesOn(until, waits=self._undecided)
        if self._iterating.give_up is not None:
            return self._review_give_up(current, self._iterating.give_up, now)
        where = self._where(current, now)
        what = reasons.round_failed(current, self.causes(current), self.failed, where)
        return self._after_failure(what, where)

    def _unsure(self, current: Round) -> Iterator[str]:
        """Find participants that may be lost: their stream broke, or they are silent."""
        unsure = itertools.chain(self._members.missed, self._members.suspects)
        return (incarnation for incarnation in unsure if incarnation in current.seats)

    def _await_certainty(self, current: Round, until: float) -> Wait:
        """Say what a failure waits for. Linear, so not at every beat meanwhile."""
        unsure = list(self._unsure(current))
        reason = reasons.undecided(current, self.causes(current), self.failed, unsure)
        return Wait(reason=reason, agents_wanted=0, until=until)

    def _review_give_up(self, current: Round, why: str, now: float) -> Outcome:
        """Judge a round that can't go on in process: it failed, unless nobody is left."""
        if len(self._state.given_up) == len(current.seats):
            reason = reasons.nobody_left(current, why)
            return RoundIsOver(cause=RoundEnd.AGENT_LOST, reason=reason)
        what = reasons.iterations_over(current, why, self.causes(current))
        return self._after_failure(what, self._where(current, now))

    def _after_failure(self, what: str, where: Standings) -> Outcome:
        """Charge a failed round to the budget."""
        state = self._state
        allowed, used = state.spec.restarts_max, state.restarts_used
        in_process = state.iterations_restarted
        reason = reasons.restart(what, used=used, allowed=allowed, in_process=in_process)
        if used < allowed:
            return RoundIsOver(cause=RoundEnd.WORKER_FAILED, reason=reason, where=where)
        return RunFails(reason, where)

    def _where(self, current: Round, now: float) -> Standings:
        limit = self._policy.standings_shown_max
        presences, rank_of = self._members.presences, self._iterating.rank_of
        return standings(current, presences, rank_of=rank_of, shown_max=limit, now=now)

    def _review_scale_up(self, current: Round, latest_arrival: float, now: float) -> Outcome:
        """End the round for agents that came late, if there is room and nobody has finished."""
        spec, suspects = self._state.spec, self._members.suspects
        has_room = len(current.seats) < spec.agents_max
        extras = len(self.extras) - len(self.extras & suspects)
        if not extras or not has_room or self._state.succeeded:
            self._extra_since = None
            return _GOES_ON
        self._extra_since = now if self._extra_since is None else self._extra_since
        due = last_call_deadline(spec, first=self._extra_since, latest=latest_arrival)
        if len(current.seats) + extras < spec.agents_max and now < due:
            return RoundGoesOn(due)
        reason = f"{extras} more joined the {len(current.seats)} of the round"
        return RoundIsOver(cause=RoundEnd.AGENT_JOINED, reason=reason)
