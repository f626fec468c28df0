"""Pure. The candidacy of one coordinator: when it campaigns, leads and stops leading.

Leadership is a key in etcd that is bound to a lease. Only etcd decides which coordinator leads, and
it refuses the writes of all others. This core decides what a coordinator may believe: its lease
lasts as long as etcd granted, counted from its last successful request, and no longer.

Answers may be lost, late or doubled. The leader is the one of the greatest revision, and a
leadership that was given up is never resumed. When a leadership ends other than by a hand-over, its
lease is revoked, so that requests which are still under way have no effect.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import Enum
from typing import assert_never

from drumbeat.coordinator.cluster import model
from drumbeat.coordinator.cluster.model import Ask, EtcdCall, Leader, Member
from drumbeat.coordinator.journal.etcd.model import Lease

# Delay before a call is repeated after its first failure; it doubles with each further one, up to
# a maximum that is short compared to any lease.
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 0.5
# How often a lease is kept alive in its duration.
KEEPS_PER_LEASE = 3


class CandidacyState(Enum):
    """The state of a candidacy."""

    OUTSIDE = "outside"
    """It has no lease, so it is no member."""
    FOLLOWING = "following"
    """It campaigns as soon as no coordinator leads."""
    LEADING = "leading"
    """It leads until it loses leadership or gives it away."""
    RESIGNING = "resigning"
    """It has asked etcd to end its leadership. It writes nothing, and has not stopped leading."""
    HANDING_OVER = "handing over"
    """It stops leading once another coordinator leads, or when none does in time."""


class Candidacy:
    """The candidacy of one process. ``now`` is its monotonic clock."""

    def __init__(self, member: Member, *, ttl_s: float) -> None:
        self.member = member
        self.standing = CandidacyState.OUTSIDE
        self.term = 0  # in which it leads or resigns; 0: none
        self.members: tuple[Member, ...] = ()
        self._asked_ttl_s = ttl_s
        self._lease: Lease | None = None
        self._lease_until = -math.inf  # it has not ended before
        self._enrolled_at: int | None = None  # the revision of its latest enrolment
        self._leader: Leader | None = None  # at ``revision``: this coordinator or another
        self._leaders_seen = 0  # by this process
        self.revision = 0
        self._is_stale = False  # etcd has not answered for as long as a lease lasts
        self._given_up = 0  # the latest term that this coordinator led and gave up
        self._leave_by = math.inf  # end of a hand-over
        self._under_way: dict[EtcdCall, int] = {}  # with their leases
        self._not_before: dict[EtcdCall, float] = {}
        self._retry_s: dict[EtcdCall, float] = {}
        self._trouble: dict[EtcdCall, str] = {}  # why the latest call of a kind failed
        self._why_not = "it has just begun to ask"
        self._wish = ""  # why it is to step down
        self._announced: tuple[Leader | None, str] = (None, self._why_not)
        self._effects: list[model.Effect] = []

    @property
    def ttl_s(self) -> float:
        """How long a lease lasts: as granted, or as asked for while there is none."""
        return self._asked_ttl_s if self._lease is None else self._lease.ttl_s

    @property
    def leader(self) -> Leader | None:
        """The leader that callers can be sent to, as far as is known."""
        leader = self._leader
        if leader is None or not leader.address or self._is_stale:
            return None
        if leader.member.member_id == self.member.member_id:
            return leader if self.standing is CandidacyState.LEADING else None
        # An earlier process at this address has ended: callers would only reach this process.
        return None if leader.address == self.member.address else leader

    @property
    def reason(self) -> str:
        """Why no coordinator leads, as far as is known; empty: one does."""
        if self.leader is not None:
            return ""
        if self._trouble:
            return f"etcd does not do what it is asked for: {next(iter(self._trouble.values()))}"
        if self.standing in (CandidacyState.RESIGNING, CandidacyState.HANDING_OVER):
            return f"{self.member.address} gave leadership away, and none has taken it yet"
        is_known = self._leader is not None and not self._is_stale
        if is_known and self._leader is not None and self._leader.member != self.member:
            where = self._leader.address or "at an unknown address"
            return f"the one that led before, {where}, has a lease that is not over yet"
        return self._why_not

    @property
    def is_successor(self) -> bool:
        """Whether this process saw another leadership before the current one."""
        return self._leaders_seen > 1

    def is_leading(self, *, now: float) -> bool:
        """Return whether this coordinator leads, as far as it can know."""
        return self.standing is CandidacyState.LEADING and now < self._lease_until

    def handle(self, event: model.Event, *, now: float) -> list[model.Effect]:
        """Handle one event, and return what follows."""
        if self._lease is not None and now >= self._lease_until:
            self._is_stale = True  # unless this event is news of the leader
        self._take(event, now)
        self._check_lease(now)
        self._review(now)
        self._ask(now)
        if (known := (self.leader, self.reason)) != self._announced:
            self._announced = known
            self._effects.append(model.LeaderChanged(*known))
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> float | None:
        """Return when ``DeadlineReached`` is due."""
        due = [self._not_before.get(request.call, -math.inf) for request in self._wanted()]
        if self._lease is not None:
            due.append(self._lease_until)
        at = min([*due, self._leave_by])
        return at if at < math.inf else None

    def check_invariants(self) -> None:
        """Assert what must hold between events."""
        assert (self.standing is CandidacyState.OUTSIDE) == (self._lease is None), (
            "a lease for a member"
        )
        has_term = self.standing in (CandidacyState.LEADING, CandidacyState.RESIGNING)
        assert has_term == (self.term > 0), "a term while it leads"
        assert self.term == 0 or self.term > self._given_up, "no term is led twice"
        leaves = self.standing in (CandidacyState.RESIGNING, CandidacyState.HANDING_OVER)
        assert leaves == (self._leave_by < math.inf), "a hand-over ends"
        if has_term:
            assert self._leader is not None, "it knows itself"
            assert self._leader.term == self.term, "it leads what etcd says"

    # Events.

    def _take(self, event: model.Event, now: float) -> None:
        match event:
            case model.LeaseKept():
                self._on_kept(event)
            case model.ClusterSeen():
                self._on_seen(event)
            case model.LeaseGranted():
                self._on_granted(event)
            case model.Answered():
                self._on_answered(event, now)
            case model.Revoked():
                self._answered(EtcdCall.REVOKE, event.lease_id)
                if self._leader is not None and self._leader.lease_id == event.lease_id:
                    self._see(None, self.revision)
            case model.EtcdCallFailed():
                self._on_failed(event, now)
            case model.WriteRefused():
                if event.term == self.term:
                    self._end_lease("etcd refused a write: another one may lead by now")
            case model.StepDownAsked():
                self._on_step_down(event, now)
            case model.DeadlineReached():
                pass
            case _:
                assert_never(event)

    def _on_granted(self, event: model.LeaseGranted) -> None:
        self._answered(EtcdCall.GRANT, 0)
        if self._lease is not None:  # a doubled answer
            return
        self._lease = event.lease
        self.standing = CandidacyState.FOLLOWING
        self._keep(event.asked_at, event.lease.ttl_s)

    def _on_answered(self, event: model.Answered, now: float) -> None:
        is_current = self._under_way.get(event.call) == event.lease_id
        if is_current and event.call is EtcdCall.ENROL:
            self._enrolled_at = event.revision
        self._answered(event.call, event.lease_id)
        self._see(event.leader, event.revision)
        if event.call is EtcdCall.CAMPAIGN and self._leader is None:  # that leader is gone already
            self._not_before[EtcdCall.CAMPAIGN] = now + RETRY_FIRST_S

    def _on_seen(self, event: model.ClusterSeen) -> None:
        self.members = event.members
        is_missing = self.member not in event.members
        if self._enrolled_at is not None and event.revision >= self._enrolled_at and is_missing:
            # An enrolment with an earlier lease arrived later, and ended with that lease.
            self._enrolled_at = None
        self._see(event.leader, event.revision)

    def _on_kept(self, event: model.LeaseKept) -> None:
        if self._lease is None or event.lease_id != self._lease.lease_id:
            return
        self._answered(EtcdCall.KEEP_ALIVE, event.lease_id)
        if event.ttl_s > 0.0:
            self._keep(event.asked_at, event.ttl_s)
            self._is_stale = False
        else:
            self._end_lease("its lease had ended in etcd", is_revoked=False)

    def _keep(self, asked_at: float, ttl_s: float) -> None:
        self._lease_until = max(self._lease_until, asked_at + ttl_s)
        self._not_before[EtcdCall.KEEP_ALIVE] = asked_at + ttl_s / KEEPS_PER_LEASE

    def _on_failed(self, event: model.EtcdCallFailed, now: float) -> None:
        if self._under_way.get(event.call) != event.lease_id:
            return  # the call was for a lease that was given up
        del self._under_way[event.call]
        delay_s = self._retry_s.get(event.call, RETRY_FIRST_S)
        self._retry_s[event.call] = min(2 * delay_s, RETRY_MAX_S)
        self._not_before[event.call] = now + delay_s
        if event.call is not EtcdCall.REVOKE:  # nothing depends on it
            self._trouble.setdefault(event.call, event.reason)
        if event.call in (EtcdCall.ENROL, EtcdCall.CAMPAIGN, EtcdCall.RESIGN):
            self._not_before[EtcdCall.KEEP_ALIVE] = now  # the lease may have ended

    def _answered(self, call: EtcdCall, lease_id: int) -> None:
        if self._under_way.get(call) == lease_id:
            del self._under_way[call]
            self._retry_s.pop(call, None)
            self._not_before.pop(call, None)
            self._trouble.pop(call, None)

    def _see(self, leader: Leader | None, revision: int) -> None:
        """Take in which coordinator led at a revision, unless a later one is known."""
        if revision < self.revision:
            return
        if leader is not None:
            self._trouble.pop(EtcdCall.CAMPAIGN, None)
        elif self._leader is not None:
            self._why_not = f"{self._leader.address} has stopped leading"
        self._leaders_seen += leader not in (None, self._leader)
        self._leader, self.revision, self._is_stale = leader, revision, False

    def _on_step_down(self, event: model.StepDownAsked, now: float) -> None:
        peers = [member for member in self.members if member.member_id != self.member.member_id]
        if self.standing in (CandidacyState.RESIGNING, CandidacyState.HANDING_OVER):
            return  # asked for again
        if self.standing is not CandidacyState.LEADING or now >= self._lease_until:
            self._effects.append(model.RefuseStepDown("it does not lead"))
        elif not peers:
            self._effects.append(model.RefuseStepDown("there is no other one that could"))
        elif trouble := self._trouble.get(EtcdCall.KEEP_ALIVE):
            self._effects.append(model.RefuseStepDown(f"etcd does not answer now: {trouble}"))
        else:
            self.standing, self._wish = CandidacyState.RESIGNING, event.reason
            self._leave_by = now + self.ttl_s

    # Consequences.

    def _check_lease(self, now: float) -> None:
        if self._lease is not None and now >= self._lease_until:
            why = self._trouble.get(EtcdCall.KEEP_ALIVE, "this process stood still")
            lasted = f"its lease of {self.ttl_s:g} s in etcd could not be kept alive"
            leader = self.leader
            other = leader if leader is not None and leader.member != self.member else None
            self._end_lease(f"{lasted}: {why}", leader=other)

    def _review(self, now: float) -> None:
        """Act on which coordinator leads."""
        leader = self._leader
        is_ours = leader is not None and self._is_ours(leader)
        match self.standing:
            case CandidacyState.LEADING | CandidacyState.RESIGNING if (
                leader is None or not is_ours or leader.term != self.term
            ):
                self._lost(leader, now)
            case CandidacyState.RESIGNING if now >= self._leave_by:
                self._end_lease("the hand-over was not answered in time")
            case CandidacyState.FOLLOWING if leader is not None and is_ours:
                self._lead(leader)
            case CandidacyState.FOLLOWING if leader is not None and self._has_lease(leader):
                self._end_lease("it had not given its leadership away, as it seemed")
            case CandidacyState.HANDING_OVER:
                self._hand_over(leader, now)

    def _is_ours(self, leader: Leader) -> bool:
        return self._has_lease(leader) and leader.term > self._given_up

    def _has_lease(self, leader: Leader) -> bool:
        return self._lease is not None and leader.lease_id == self._lease.lease_id

    def _lead(self, leader: Leader) -> None:
        self.standing, self.term = CandidacyState.LEADING, leader.term
        self._effects.append(model.Lead(leader.term, "it won the campaign"))

    def _lost(self, leader: Leader | None, now: float) -> None:
        """Act on etcd's word that this coordinator does not lead any more."""
        if self.standing is CandidacyState.RESIGNING:
            self._given_up, self.term = self.term, 0
            self.standing = CandidacyState.HANDING_OVER
            self._hand_over(leader, now)
        elif leader is None or self._has_lease(leader):  # a doubled campaign began another term
            self._end_lease("its leadership had ended in etcd")
        else:
            self._end_lease(f"{leader.address} leads, in term {leader.term}", leader=self.leader)

    def _hand_over(self, leader: Leader | None, now: float) -> None:
        if leader is not None and self._is_ours(leader):
            # A campaign that seemed to be lost has arrived: resign from its term, too.
            self.standing, self.term = CandidacyState.RESIGNING, leader.term
        elif self.leader is not None:
            self._leave(self.leader, f"{self.leader.address} took it")
        elif now >= self._leave_by:
            self._leave(None, "none took it in time")

    def _leave(self, leader: Leader | None, outcome: str) -> None:
        self.standing, self._leave_by = CandidacyState.FOLLOWING, math.inf
        reason = f"it gave leadership away ({self._wish}), and {outcome}"
        self._why_not = reason
        self._effects.append(model.StopLeading(leader, reason))

    def _end_lease(
        self, reason: str, *, is_revoked: bool = True, leader: Leader | None = None
    ) -> None:
        """End the lease and the leadership that is bound to it, and begin again."""
        assert self._lease is not None, "there is a lease"
        if self.standing is not CandidacyState.FOLLOWING:
            self._effects.append(model.StopLeading(leader, reason))
        if is_revoked and EtcdCall.REVOKE not in self._under_way:
            self._start(Ask(EtcdCall.REVOKE, self._lease.lease_id))
        self._given_up = max(self._given_up, self.term)
        self.standing, self.term, self._leave_by = CandidacyState.OUTSIDE, 0, math.inf
        self._lease, self._lease_until, self._enrolled_at = None, -math.inf, None
        self._why_not = reason
        for call in (EtcdCall.KEEP_ALIVE, EtcdCall.ENROL, EtcdCall.CAMPAIGN, EtcdCall.RESIGN):
            self._under_way.pop(call, None)
            self._not_before.pop(call, None)
            self._retry_s.pop(call, None)
            self._trouble.pop(call, None)

    # Requests to etcd.

    def _ask(self, now: float) -> None:
        for request in list(self._wanted()):
            if now >= self._not_before.get(request.call, -math.inf):
                self._start(request)

    def _start(self, request: Ask) -> None:
        self._under_way[request.call] = request.lease_id
        self._effects.append(request)

    def _wanted(self) -> Iterator[Ask]:
        """Yield the requests that are not under way; some may have to wait."""
        return (request for request in self._needed() if request.call not in self._under_way)

    def _needed(self) -> Iterator[Ask]:
        lease_id = 0 if self._lease is None else self._lease.lease_id
        if self._lease is None:
            yield Ask(EtcdCall.GRANT)
        else:
            yield Ask(EtcdCall.KEEP_ALIVE, lease_id)
            if self._enrolled_at is None:
                yield Ask(EtcdCall.ENROL, lease_id)
        if self.standing is CandidacyState.FOLLOWING and self._leader is None and self.revision:
            yield Ask(EtcdCall.CAMPAIGN, lease_id)
        if self.standing is CandidacyState.RESIGNING:
            yield Ask(EtcdCall.RESIGN, lease_id, self.term)
        if (left_behind := self._left_behind()) is not None:
            yield Ask(EtcdCall.REVOKE, left_behind)

    def _left_behind(self) -> int | None:
        """Return the lease of a leadership of this process that etcd has and it gave up."""
        leader = self._leader
        if leader is None or leader.member != self.member:
            return None
        return None if self._has_lease(leader) else leader.lease_id
