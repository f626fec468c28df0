"""Pure. Decides which replica groups of a job train the next step together.

The rules are those of torchft's lighthouse 0.2.0, driven by events in place of its ticks. Beyond
them:

* A group whose round is over is out at once.
* The first quorum waits for groups that have not come yet. Later ones wait for no replica that has
  never asked.
* Others are waited for as long as the step before took, if that is longer than the join timeout.
* After a failed step others are waited for only as long as steps take.
* A request that is repeated gets the answer that was given to it.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from drumbeat.coordinator.core.quorum.model import (
    CallEnded,
    GiveQuorum,
    GroupLeft,
    KeepQuorum,
    KeptQuorum,
    Quorum,
    QuorumDecided,
    QuorumEffect,
    QuorumEvent,
    QuorumKept,
    QuorumRequest,
    ReplicaReported,
)
from drumbeat.text.format import count, listed

GROUPS_SHOWN_MAX = 16


class QuorumPolicy(Struct, frozen=True, kw_only=True):
    """What torchft 0.2.0 recommends; it is not asked at intervals, so there is no tick."""

    groups_min: int = 1  # fewest groups of a new quorum
    groups_count: int = 0  # that the job has: while it begins those that come late are waited for
    # How long replicas that live and do not ask are waited for; longer if the latest step was.
    join_timeout_s: float = 10.0
    # Once a step has failed it is two steps, at least this: a replica may be stuck in a collective
    # until others have left it.
    broken_step_wait_s: float = 0.5
    return_timeout_s: float = 5.0  # how long a replica whose agent is not connected counts as alive


class _Replica(Struct):
    replica_id: str
    source: str  # the call that it is known from; empty: its agent is not connected
    request: QuorumRequest | None = None
    asked_at: float = 0.0
    has_asked: bool = False


class JobQuorum:
    """The quorum of one job. Work per event does not grow with groups, unless one is formed.

    ``kept`` is what the journal has of an earlier coordinator, and ``running`` are the groups that
    have workers now.
    """

    def __init__(
        self,
        job: str,
        policy: QuorumPolicy,
        kept: KeptQuorum | None = None,
        running: Collection[int] = (),
        *,
        now: float,
    ) -> None:
        self.job, self._policy = job, policy
        self.previous = kept
        self.quorum_id = 0 if kept is None else kept.quorum_id
        self.latest: Quorum | None = None  # that was given
        self._answered: dict[str, int] = {}  # by it: the number of a request, by replica id
        self._pending: Quorum | None = None  # that is being journaled
        self._replicas: dict[int, _Replica] = {}  # that live, by group
        self._asking: dict[int, _Replica] = {}  # of these, in the order in which they asked
        self._new: set[int] = set()  # of these, groups of replicas that have never asked
        self._absent: set[int] = set()  # groups of the previous quorum whose member does not ask
        self._return_by: dict[int, float] = {}  # by group, while its agent is not connected
        self._is_broken = False  # a step has failed since the latest quorum was given
        self._given_at = self._step_s = 0.0  # when the latest was given, and how long a step took
        self._join_by: float | None = None  # when replicas that do not ask are waited for no longer
        self._reset_absent()
        for group, replica_id in ({} if kept is None else kept.members).items():
            if group in running:
                self._replicas[group] = _Replica(replica_id, "", has_asked=True)
                self._return_by[group] = now + policy.return_timeout_s

    @property
    def is_empty(self) -> bool:
        """Whether no replica lives."""
        return not self._replicas

    def next_deadline(self) -> float | None:
        """Return when ``QuorumDue`` is due."""
        due = [*self._return_by.values()]
        if self._join_by is not None:
            due.append(self._join_by)
        return min(due, default=None)

    def handle(self, event: QuorumEvent, *, now: float) -> list[QuorumEffect]:
        """Take one event in at ``now``, in seconds."""
        effects: list[QuorumEffect] = []
        match event:
            case ReplicaReported():
                effects += self._take_report(event, now)
            case CallEnded(group=group, source=source):
                replica = self._replicas.get(group)
                if replica is not None and replica.source == source:
                    replica.source = ""
                    self._withdraw(group)
                    self._return_by[group] = now + self._policy.return_timeout_s
            case GroupLeft(group=group, reason=reason):
                effects += self._remove(group, reason)
            case QuorumKept():
                effects += self._kept(now)
        for group in [group for group, at in self._return_by.items() if at <= now]:
            effects += self._remove(group, "its agent did not come back")
        return effects + self._decide(now)

    def check_invariants(self) -> None:
        """Assert what must hold between events. Linear in groups; for tests."""
        assert self._asking.items() <= self._replicas.items(), "a replica asks that does not live"
        assert all(replica.request for replica in self._asking.values()), "one asks without request"
        assert self._new == {g for g, r in self._replicas.items() if not r.has_asked}
        assert self._return_by.keys() == {g for g, r in self._replicas.items() if not r.source}
        members = {} if self.previous is None else self.previous.members
        asking = {group: replica.replica_id for group, replica in self._asking.items()}
        assert self._absent == {g for g, id_ in members.items() if asking.get(g) != id_}
        assert self.previous is None or self.previous.quorum_id <= self.quorum_id

    def _take_report(self, event: ReplicaReported, now: float) -> list[QuorumEffect]:
        group, request = event.group, event.request
        effects: list[QuorumEffect] = []
        if event.latest is not None and event.latest.is_after(self.latest):
            self._set_latest(event.latest)
            effects += self._repeat([*self._asking])
        replica = self._replicas.get(group)
        if replica is None or replica.replica_id != event.replica_id:
            if replica is not None and replica.source and request is None:
                return effects  # another of the group is in use, until this one asks
            if replica is not None:
                effects += self._remove(group, "another replica of the group took its place")
            replica = self._replicas[group] = _Replica(event.replica_id, event.source)
            self._new.add(group)
        replica.source = event.source
        self._return_by.pop(group, None)
        if event.is_silent:
            return [*effects, *self._remove(group, "its replica sends no heartbeats")]
        if request is None:
            self._withdraw(group)
        elif replica.request is None or replica.request.number != request.number:
            self._withdraw(group)
            self._ask(group, request, now)
            effects += self._repeat([group])
        return effects

    def _ask(self, group: int, request: QuorumRequest, now: float) -> None:
        replica = self._asking[group] = self._replicas[group]
        replica.request, replica.asked_at, replica.has_asked = request, now, True
        self._new.discard(group)
        self._is_broken = self._is_broken or request.commit_failures > 0
        if self._is_member(group):
            self._absent.discard(group)

    def _withdraw(self, group: int) -> None:
        if (replica := self._asking.pop(group, None)) is not None:
            replica.request = None
            if self._is_member(group):
                self._absent.add(group)

    def _is_member(self, group: int) -> bool:
        """Whether the replica of a group was in the previous quorum."""
        replica_id = self._replicas[group].replica_id
        return self.previous is not None and self.previous.members.get(group) == replica_id

    def _remove(self, group: int, reason: str) -> list[QuorumEffect]:
        if group not in self._replicas:
            return []
        self._withdraw(group)
        self._is_broken = self._is_broken or self._is_member(group)
        del self._replicas[group]
        self._new.discard(group)
        self._return_by.pop(group, None)
        return [QuorumDecided(decision="group out", reason=f"group {group}: {reason}")]

    def _set_latest(self, quorum: Quorum) -> None:
        self.latest, self._answered = quorum, quorum.numbers
        self.quorum_id = max(self.quorum_id, quorum.quorum_id)

    def _repeat(self, groups: Collection[int]) -> list[QuorumEffect]:
        """Give the latest quorum again to those of these groups that missed it.

        Once a member has asked anew, its step has failed, and those that missed it need the next.
        """
        asked = {group: self._request(group) for group in groups}
        missed = {g: r for g, r in asked.items() if self._answered.get(r.replica_id) == r.number}
        if not missed or self.latest is None:
            return []
        all_asked = map(self._request, self._asking)
        if any(r.number > self._answered.get(r.replica_id, r.number) for r in all_asked):
            return []
        numbers = {self._replicas[group].source: r.number for group, r in missed.items()}
        for group in missed:
            self._withdraw(group)
        return [GiveQuorum(quorum=self.latest, numbers=numbers)]

    def _request(self, group: int) -> QuorumRequest:
        request = self._asking[group].request
        assert request is not None, "it asks"
        return request

    def _decide(self, now: float) -> list[QuorumEffect]:
        """Form a quorum if the rules allow it now."""
        self._join_by = None
        asking, healthy = len(self._asking), len(self._replicas)
        if self._pending is not None or not asking:
            return []
        if self.previous is not None and not self._absent:
            return self._form("all groups of the quorum before it ask again", now)
        # As torchft: more than half of them, but of three two.
        if asking < self._policy.groups_min or asking <= healthy // 2:
            return []
        goes_on = self.previous is not None and len(self._absent) < len(self.previous.members)
        awaited = healthy - len(self._new) if goes_on else max(healthy, self._policy.groups_count)
        if not (missing := awaited - asking):
            return self._form("all groups that are waited for ask", now)
        first = next(iter(self._asking.values())).asked_at
        if now >= (join_by := self._last_call(first)):
            why = f"{count(missing, 'group')} did not ask within {now - first:.1f} s"
            return self._form(why, now)
        self._join_by = join_by
        return []

    def _last_call(self, first: float) -> float:
        """Return until when others are waited for, the first having asked then."""
        policy = self._policy
        if not self._step_s or not self._is_broken:
            return first + max(policy.join_timeout_s, self._step_s)
        soon = max(first + policy.broken_step_wait_s, self._given_at + 2 * self._step_s)
        return min(soon, first + policy.join_timeout_s)

    def _form(self, reason: str, now: float) -> list[QuorumEffect]:
        """Give the quorum of those that ask, or journal it first if it gets another id."""
        members = {group: replica.replica_id for group, replica in self._asking.items()}
        before = {} if self.previous is None else self.previous.members
        requests = [self._request(group) for group in members]
        if any(request.shrink_only for request in requests):
            stayed = {group: id_ for group, id_ in members.items() if before.get(group) == id_}
            members = stayed or members  # of a quorum of which no member is left none is kept out
        chosen = [request for request in requests if request.replica_id in members.values()]
        failed = [request.replica_id for request in chosen if request.commit_failures > 0]
        is_new = members != before
        if is_new or failed:
            self.quorum_id += 1
        by_id = sorted(chosen, key=lambda request: request.replica_id)
        quorum = Quorum(quorum_id=self.quorum_id, requests=tuple(by_id))
        if not is_new and not failed:
            return self._give(quorum, members, now)
        self._pending = quorum
        if not is_new:
            reason = f"the last step failed in {listed(failed, GROUPS_SHOWN_MAX)}"
        groups = listed(map(str, sorted(members)), GROUPS_SHOWN_MAX)
        kept = KeptQuorum(job=self.job, quorum_id=self.quorum_id, members=members)
        self.previous = kept
        self._reset_absent()
        text = f"quorum {self.quorum_id} of {count(len(members), 'group')} ({groups}): {reason}"
        return [QuorumDecided(decision="quorum", reason=text), KeepQuorum(quorum=kept)]

    def _kept(self, now: float) -> list[QuorumEffect]:
        """Give the quorum that is durable now, unless one of its members has gone meanwhile."""
        quorum, self._pending = self._pending, None
        assert quorum is not None, "it was asked for"
        assert self.previous is not None, "it is this one"
        asked = {
            (request.replica_id, request.number) for request in map(self._request, self._asking)
        }
        if asked >= {*quorum.numbers.items()}:
            return self._give(quorum, self.previous.members, now)
        return []

    def _give(self, quorum: Quorum, members: Collection[int], now: float) -> list[QuorumEffect]:
        if self.latest is not None and not self._is_broken:
            self._step_s = now - self._given_at
        self._given_at, self._is_broken = now, False
        self._set_latest(quorum)
        numbers = {}
        for group in members:
            numbers[self._replicas[group].source] = self._request(group).number
            self._withdraw(group)
        for group in [*self._asking]:  # of replicas that are no members: they wait for the next
            self._ask(group, self._request(group), now)
        return [GiveQuorum(quorum=quorum, numbers=numbers)]

    def _reset_absent(self) -> None:
        """Note which members of the previous quorum do not ask."""
        members = {} if self.previous is None else self.previous.members
        asking = {group: replica.replica_id for group, replica in self._asking.items()}
        self._absent = {group for group, id_ in members.items() if asking.get(group) != id_}
