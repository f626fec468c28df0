"""Shell. Runs the candidacy of this coordinator on etcd."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import aclosing, suppress
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from drumbeat.coordinator import errors
from drumbeat.coordinator.cluster import model, transactions
from drumbeat.coordinator.cluster.candidacy import Candidacy
from drumbeat.coordinator.cluster.model import Ask, EtcdCall, Leader, Member
from drumbeat.coordinator.journal.etcd.following import following, reason_of
from drumbeat.coordinator.journal.etcd.model import Etcd
from drumbeat.coordinator.journal.keys import Keys

log = structlog.get_logger()

# Used if etcd's client, which has shorter limits, does not end a call.
ANSWER_TIMEOUT_S = 10.0
# How long ``close`` waits for etcd to end the lease, which ends by itself otherwise.
CLOSE_TIMEOUT_S = 1.0

SET_BACK = (
    "etcd was emptied or restored from a copy, and agents refuse terms before those that they "
    "know: restore it with `etcdutl snapshot restore --bump-revision 1000000000 --mark-compacted`"
)


class SeenTerm(Struct, frozen=True):
    """The latest term of a cluster of coordinators."""

    prefix: str
    term: int


class SeenTerms:
    """The latest term that this host has seen, kept in a file outside of etcd.

    An etcd that was restored from a copy may go on below the terms that agents know; they would
    refuse every coordinator for ever.
    """

    def __init__(self, directory: Path, prefix: str) -> None:
        self._path, self._prefix = directory / "etcd.term", prefix
        self._term = 0
        with suppress(OSError, msgspec.DecodeError):
            kept = msgspec.json.decode(self._path.read_bytes(), type=SeenTerm)
            self._term = kept.term if kept.prefix == prefix else 0

    def check(self, revision: int) -> None:
        """Raise ``JournalUnusable`` if a revision of etcd is before the latest term."""
        if revision < self._term:
            problem = f"its revision is {revision}, and a coordinator led in term {self._term}"
            raise errors.JournalUnusable("in etcd", problem, hint=SET_BACK)

    def add(self, term: int) -> None:
        """Keep a term in which a coordinator leads."""
        if term > self._term:
            self._term = term
            new = self._path.with_suffix(".new")
            with suppress(OSError):  # where the disk is lost, this file may be lost, too
                new.write_bytes(msgspec.json.encode(SeenTerm(self._prefix, term)))
                new.replace(self._path)


async def answer(
    request: Ask,
    etcd: Etcd,
    keys: Keys,
    member: Member,
    *,
    ttl_s: float,
    clock: Callable[[], float],
) -> model.Event:
    """Ask etcd for what a candidacy wants, and return the answer. Raises ``CommandFailed``."""
    call, lease_id, asked_at = request.call, request.lease_id, clock()
    match call:
        case EtcdCall.GRANT:
            return model.LeaseGranted(await etcd.grant(ttl_s), asked_at)
        case EtcdCall.KEEP_ALIVE:
            return model.LeaseKept(lease_id, await etcd.keep_alive(lease_id), asked_at)
        case EtcdCall.REVOKE:
            await etcd.revoke(lease_id)
            return model.Revoked(lease_id)
        case EtcdCall.CAMPAIGN:
            outcome = await etcd.commit(transactions.campaign(keys, member, lease_id))
            leader: Leader | None = transactions.campaigned(outcome, member, lease_id)
        case EtcdCall.ENROL:
            outcome = await etcd.commit(transactions.enrol(keys, member, lease_id))
            leader = transactions.leader_of(outcome)
        case EtcdCall.RESIGN:
            outcome = await etcd.commit(transactions.resign(keys, request.term))
            leader = transactions.leader_of(outcome)
    return model.Answered(call, lease_id, leader, outcome.revision)


class Election:
    """One coordinator's part in the election. One task runs it; all methods are for its loop.

    ``core`` knows the members, and why none leads. ``on_lead`` is called with the term when this
    coordinator begins to lead, ``on_stop`` with the error for its callers when it stops; neither
    may wait. To lead is a permission to try: etcd refuses what is written in a term that is over.
    """

    def __init__(
        self,
        etcd: Etcd,
        keys: Keys,
        member: Member,
        *,
        ttl_s: float,
        on_lead: Callable[[int], object],
        on_stop: Callable[[errors.NotLeader], object],
    ) -> None:
        self.member = member
        self._etcd, self._keys, self._asked_ttl_s = etcd, keys, ttl_s
        self._on_lead, self._on_stop = on_lead, on_stop
        self.seen_terms: SeenTerms | None = None
        self.core = Candidacy(member, ttl_s=ttl_s)
        self._lease_id = 0
        self._logged_reason = ""  # why no coordinator leads
        self._events: deque[model.Event] = deque()
        self._is_handling = False
        self._due = asyncio.Event()
        self._cluster_seen = asyncio.Event()  # set, and replaced, at each ``ClusterSeen``
        self._leader_changed = asyncio.Event()  # set, and replaced, at each ``LeaderChanged``
        self._leaving: set[asyncio.Future[Leader]] = set()
        self._tasks: asyncio.TaskGroup | None = None

    @property
    def leader(self) -> Leader | None:
        """The leader that callers can be sent to; this coordinator while it knows that it leads."""
        leader = self.core.leader
        if leader is not None and leader.member == self.member and not self.is_leading:
            return None
        return leader

    @property
    def is_leading(self) -> bool:
        """Whether this coordinator leads, as far as it can know."""
        return self.core.is_leading(now=time.monotonic())

    async def run(self) -> None:
        """Take part until cancelled. Requests that fail are repeated."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                tasks.create_task(self._watch(), name="leader watch")
                try:
                    await self._wake()
                finally:
                    self._tasks = None
        except BaseExceptionGroup as group:
            if (known := group.subgroup(errors.CommandFailed)) is not None:
                raise known.exceptions[0] from None
            raise
        finally:
            self._settle(errors.CannotStepDown("this coordinator stops"))

    async def _wake(self) -> None:
        """Wake the core at its deadlines."""
        while True:
            self._take(model.DeadlineReached())
            self._due.clear()
            while (due := self.core.next_deadline()) is None or due > time.monotonic():
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if due is None else due - time.monotonic()):
                        await self._due.wait()
                self._due.clear()

    async def close(self) -> None:
        """Leave the cluster, and stop leading, at once. Call it when ``run`` has ended."""
        if self._lease_id:
            with suppress(TimeoutError, errors.CommandFailed):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._etcd.revoke(self._lease_id)

    async def wait_for_leader(self, after_term: int, timeout_s: float) -> Leader | None:
        """Return the leader of a term after that, once there is one; ``None``: not in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while True:
                    leader = self.leader
                    if leader is not None and leader.term > after_term:
                        return leader
                    await self._leader_changed.wait()
        return None

    async def wait_for_members(self, known: Collection[Member]) -> None:
        """Return once there is a member that is not among those known."""
        while all(member in known for member in self.core.members):
            await self._cluster_seen.wait()

    async def step_down(self, reason: str) -> Leader:
        """Have another coordinator lead, and return it, after at most ``ttl_s``.

        No write of the journal may be under way, and none may begin, until this returns or raises.
        ``on_stop`` is called before. Raises ``NotLeader`` if this coordinator does not lead, and
        ``CannotStepDown`` if it leads on, or campaigns again because no other one took over.
        """
        if self._tasks is None or not (self.is_leading or self._leaving):
            leader = self.leader
            raise errors.NotLeader("" if leader is None else leader.address, self.core.reason)
        future: asyncio.Future[Leader] = asyncio.get_running_loop().create_future()
        self._leaving.add(future)
        try:
            self._take(model.StepDownAsked(reason))
            return await future
        finally:
            self._leaving.discard(future)

    def refused(self, term: int) -> None:
        """Handle that etcd refused a write of a term: ``LostLeadership`` was raised."""
        self._take(model.WriteRefused(term))

    # The core.

    def _take(self, event: model.Event) -> None:
        """Hand an event to the core and carry out its effects; effects may call this again."""
        self._events.append(event)
        if self._is_handling or self._tasks is None:  # after the end nothing is handled
            return
        self._is_handling = True
        try:
            while self._events:
                for effect in self.core.handle(self._events.popleft(), now=time.monotonic()):
                    self._carry_out(effect)
        finally:
            self._is_handling = False
            self._due.set()

    def _carry_out(self, effect: model.Effect) -> None:
        match effect:
            case model.Ask():
                assert self._tasks is not None, "it runs"
                self._tasks.create_task(self._ask(effect), name=effect.call.value)
            case model.Lead(term, reason):
                log.info("leadership", message=f"leads, in term {term}", reason=reason)
                self._on_lead(term)
            case model.StopLeading():
                self._stop(effect)
            case model.RefuseStepDown(reason):
                self._settle(errors.CannotStepDown(reason))
            case model.LeaderChanged(leader, reason):
                self._on_leader(leader, reason)

    def _stop(self, effect: model.StopLeading) -> None:
        self._logged_reason = effect.reason
        log.warning("leadership", message=f"leads no more: {effect.reason}", reason=effect.reason)
        address = "" if effect.leader is None else effect.leader.address
        self._on_stop(errors.NotLeader(address, effect.reason))
        self._settle(effect.leader or errors.CannotStepDown(effect.reason))

    def _settle(self, result: Leader | errors.CoordinatorError) -> None:
        for future in self._leaving:
            if future.done():
                continue
            if isinstance(result, Leader):
                future.set_result(result)
            else:
                future.set_exception(result)

    def _on_leader(self, leader: Leader | None, reason: str) -> None:
        if leader is not None and self.seen_terms is not None:
            self.seen_terms.add(leader.term)
        if leader is None:
            if reason != self._logged_reason:
                log.warning("leadership", message=f"none leads: {reason}", reason=reason)
            self._logged_reason = reason
        elif leader.member != self.member:
            log.info("leadership", message=f"{leader.address} leads, in term {leader.term}")
        self._leader_changed.set()
        self._leader_changed = asyncio.Event()

    # Etcd.

    async def _ask(self, request: Ask) -> None:
        known, event = self.core.revision, await self._answer(request)
        if isinstance(event, model.LeaseGranted):
            self._lease_id = event.lease.lease_id
            if event.lease.ttl_s > self._asked_ttl_s + 1.0:  # etcd rounds up to whole seconds
                reason = f"etcd grants no less than {event.lease.ttl_s:g} s"
                log.warning("a leader that dies is replaced later than --leader-ttl", reason=reason)
        if isinstance(event, model.Answered) and event.revision < known:
            problem = f"its revision went back from {known} to {event.revision}"
            self._tasks = None  # nothing is asked any more
            raise errors.JournalUnusable("in etcd", problem, hint=SET_BACK)
        self._take(event)

    async def _answer(self, request: Ask) -> model.Event:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                ttl_s, clock = self._asked_ttl_s, time.monotonic
                return await answer(
                    request, self._etcd, self._keys, self.member, ttl_s=ttl_s, clock=clock
                )
        except TimeoutError:
            reason = "it did not answer in time"
        except errors.CommandFailed as error:
            reason = reason_of(error)
        return model.EtcdCallFailed(request.call, request.lease_id, reason)

    async def _watch(self) -> None:
        """Follow the leader and the members."""
        where = transactions.range_of(self._keys)
        async with aclosing(following(self._etcd, *where)) as readings:
            async for pairs, revision in readings:
                leader, members = transactions.cluster(pairs.values(), self._keys)
                self._take(model.ClusterSeen(leader, members, revision))
                self._cluster_seen.set()
                self._cluster_seen = asyncio.Event()
