"""Shell. Runs the candidacy of this coordinator on etcd, and tells who leads."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from contextlib import aclosing, suppress

import structlog

from drumbeat.coordinator.cluster import model as do
from drumbeat.coordinator.cluster import requests
from drumbeat.coordinator.cluster.candidacy import Candidacy
from drumbeat.coordinator.cluster.following import following, reason_of
from drumbeat.coordinator.cluster.model import Call, Leader, Member
from drumbeat.coordinator.cluster.seen_terms import SET_BACK
from drumbeat.coordinator.errors import (
    CannotStepDown,
    CommandFailed,
    CoordinatorError,
    JournalUnusable,
    NotLeader,
)
from drumbeat.coordinator.journal.etcd.keys import Keys
from drumbeat.coordinator.journal.etcd.model import Etcd

log = structlog.get_logger()

# The longest wait for an answer, should the client of etcd, which has shorter ones, not end it.
ANSWER_TIMEOUT_S = 10.0
# How long ``close`` waits for etcd to take the lease back; without that it ends by itself.
CLOSE_TIMEOUT_S = 1.0


class Election:
    """One coordinator's part in the election. One task runs it; everything here is of its loop.

    ``on_lead`` is called with the term when this coordinator leads, ``on_stop`` with what its
    callers are to be told when it does no more; both in turn, and they must not wait. What is
    decided in a term is written in it, so leading is a permission to try and no promise.
    """

    def __init__(
        self,
        etcd: Etcd,
        keys: Keys,
        member: Member,
        *,
        ttl_s: float,
        on_lead: Callable[[int], object],
        on_stop: Callable[[NotLeader], object],
    ) -> None:
        self.member = member
        self._etcd, self._keys = etcd, keys
        self._on_lead, self._on_stop = on_lead, on_stop
        # Called with each term in which this or another one leads.
        self.on_term: Callable[[int], object] = lambda _term: None
        self._core = Candidacy(member, ttl_s=ttl_s)
        self._asked_ttl_s = ttl_s
        self._lease_id = 0
        self._last_told = ""  # of why none leads
        self._events: deque[do.Event] = deque()
        self._is_handling = False
        self._due = asyncio.Event()
        self._seen = asyncio.Event()  # set, and replaced, whenever the cluster was seen
        self._told = asyncio.Event()  # set, and replaced, whenever who leads has changed
        self._leaving: set[asyncio.Future[Leader]] = set()
        self._tasks: asyncio.TaskGroup | None = None

    @property
    def leader(self) -> Leader | None:
        """Who leads and can be asked, as far as is known; itself as long as it knows that."""
        leader = self._core.leader
        if leader is not None and leader.member == self.member and not self.is_leading:
            return None
        return leader

    @property
    def is_leading(self) -> bool:
        """Whether this coordinator leads, as far as it can know."""
        return self._core.is_leading(now=time.monotonic())

    @property
    def is_successor(self) -> bool:
        """Whether the one that leads follows another leadership that this process saw."""
        return self._core.is_successor

    @property
    def reason(self) -> str:
        """Why none leads, as far as is known; empty: one does."""
        return self._core.reason

    @property
    def members(self) -> tuple[Member, ...]:
        """The coordinators that are there, this one among them, ordered by address."""
        return self._core.members

    @property
    def ttl_s(self) -> float:
        """How long after its death a leader is replaced: as etcd granted it."""
        return self._core.ttl_s

    async def run(self) -> None:
        """Take part until cancelled. Etcd that does not answer, or refuses, is asked again."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                tasks.create_task(self._watch(), name="leader watch")
                try:
                    await self._wake()
                finally:
                    self._tasks = None
        except BaseExceptionGroup as group:
            if (known := group.subgroup(CommandFailed)) is not None:
                raise known.exceptions[0] from None
            raise
        finally:
            self._settle(CannotStepDown("this coordinator stops"))

    async def _wake(self) -> None:
        """Tell the core of its deadlines."""
        while True:
            self._take(do.DeadlineReached())
            self._due.clear()
            while (due := self._core.next_deadline()) is None or due > time.monotonic():
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if due is None else due - time.monotonic()):
                        await self._due.wait()
                self._due.clear()

    async def close(self) -> None:
        """Be no member any more, and lead no more, at once. Call it when ``run`` has ended."""
        if self._lease_id:
            with suppress(TimeoutError, CommandFailed):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._etcd.revoke(self._lease_id)

    async def wait_for_leader(self, after_term: int, timeout_s: float) -> Leader | None:
        """Return who leads in a later term than that, once one does; ``None``: none in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while True:
                    leader = self.leader
                    if leader is not None and leader.term > after_term:
                        return leader
                    await self._told.wait()
        return None

    async def wait_for_members(self, known: Collection[Member]) -> None:
        """Return once one is there that is not among those known."""
        while all(each in known for each in self.members):
            await self._seen.wait()

    async def step_down(self, reason: str) -> Leader:
        """Have another coordinator lead; return which, once it does, at most ``ttl_s`` later.

        No write of the journal may be under way, and none may begin, until this returns or raises.
        ``on_stop`` is called before. Raises ``NotLeader`` if this one does not lead, and
        ``CannotStepDown`` if it leads on, or tries to again because no other one did.
        """
        if self._tasks is None or not (self.is_leading or self._leaving):
            leader = self.leader
            raise NotLeader("" if leader is None else leader.address, self.reason)
        future: asyncio.Future[Leader] = asyncio.get_running_loop().create_future()
        self._leaving.add(future)
        try:
            self._take(do.StepDownAsked(reason))
            return await future
        finally:
            self._leaving.discard(future)

    def refused(self, term: int) -> None:
        """Take in that a write of that term was refused: ``LostLeadership`` was raised."""
        self._take(do.WriteRefused(term))

    # The core.

    def _take(self, event: do.Event) -> None:
        """Hand an event over and carry out what follows, in order, also where that leads here."""
        self._events.append(event)
        if self._is_handling or self._tasks is None:  # what comes after its end changes nothing
            return
        self._is_handling = True
        try:
            while self._events:
                for effect in self._core.handle(self._events.popleft(), now=time.monotonic()):
                    self._do(effect)
        finally:
            self._is_handling = False
            self._due.set()

    def _do(self, effect: do.Effect) -> None:
        match effect:
            case do.Grant(ttl_s):
                self._call(Call.GRANT, 0, lambda: self._grant(ttl_s))
            case do.KeepAlive(lease_id):
                self._call(Call.KEEP_ALIVE, lease_id, lambda: self._keep_alive(lease_id))
            case do.Enrol(lease_id):
                self._call(Call.ENROL, lease_id, lambda: self._enrol(lease_id))
            case do.Campaign(lease_id):
                self._call(Call.CAMPAIGN, lease_id, lambda: self._campaign(lease_id))
            case do.Resign(lease_id, term):
                self._call(Call.RESIGN, lease_id, lambda: self._resign(lease_id, term))
            case do.Revoke(lease_id):
                self._call(Call.REVOKE, lease_id, lambda: self._revoke(lease_id))
            case do.Lead(term, reason):
                log.info("leadership", message=f"leads, in term {term}", reason=reason)
                self._on_lead(term)
            case do.StopLeading():
                self._stop(effect)
            case do.RefuseStepDown(reason):
                self._settle(CannotStepDown(reason))
            case do.Tell(leader, reason):
                self._tell(leader, reason)

    def _stop(self, effect: do.StopLeading) -> None:
        self._last_told = effect.reason
        log.warning("leadership", message=f"leads no more: {effect.reason}", reason=effect.reason)
        address = "" if effect.leader is None else effect.leader.address
        self._on_stop(NotLeader(address, effect.reason))
        self._settle(effect.leader or CannotStepDown(effect.reason))

    def _settle(self, result: Leader | CoordinatorError) -> None:
        for future in self._leaving:
            if future.done():
                continue
            if isinstance(result, Leader):
                future.set_result(result)
            else:
                future.set_exception(result)

    def _tell(self, leader: Leader | None, reason: str) -> None:
        if leader is not None:
            self.on_term(leader.term)
        if leader is None:
            if reason != self._last_told:
                log.warning("leadership", message=f"none leads: {reason}", reason=reason)
            self._last_told = reason
        elif leader.member != self.member:
            log.info("leadership", message=f"{leader.address} leads, in term {leader.term}")
        self._told.set()
        self._told = asyncio.Event()

    # Etcd.

    def _call(self, call: Call, lease_id: int, ask: Callable[[], Awaitable[do.Event]]) -> None:
        assert self._tasks is not None, "it runs"
        self._tasks.create_task(self._answered(call, lease_id, ask), name=call.value)

    async def _answered(
        self, call: Call, lease_id: int, ask: Callable[[], Awaitable[do.Event]]
    ) -> None:
        known = self._core.revision
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                event = await ask()
        except TimeoutError:
            event = do.CallFailed(call, lease_id, "it did not answer in time")
        except CommandFailed as error:
            event = do.CallFailed(call, lease_id, reason_of(error))
        if isinstance(event, do.Answered) and event.revision < known:
            problem = f"its revision went back from {known} to {event.revision}"
            self._tasks = None  # nothing is asked any more
            raise JournalUnusable("in etcd", problem, SET_BACK)
        self._take(event)

    async def _grant(self, ttl_s: float) -> do.Event:
        asked_at = time.monotonic()
        lease = await self._etcd.grant(ttl_s)
        self._lease_id = lease.lease_id
        if lease.ttl_s > self._asked_ttl_s + 1.0:  # it is rounded up to whole seconds
            reason = f"etcd grants no less than {lease.ttl_s:g} s"
            log.warning("a leader that dies is replaced later than --leader-ttl", reason=reason)
        return do.LeaseGranted(lease, asked_at)

    async def _keep_alive(self, lease_id: int) -> do.Event:
        asked_at = time.monotonic()
        return do.LeaseKept(lease_id, await self._etcd.keep_alive(lease_id), asked_at)

    async def _enrol(self, lease_id: int) -> do.Event:
        outcome = await self._etcd.commit(requests.enrol(self._keys, self.member, lease_id))
        return do.Answered(Call.ENROL, lease_id, requests.found(outcome), outcome.revision)

    async def _campaign(self, lease_id: int) -> do.Event:
        outcome = await self._etcd.commit(requests.campaign(self._keys, self.member, lease_id))
        leader = requests.campaigned(outcome, self.member, lease_id)
        return do.Answered(Call.CAMPAIGN, lease_id, leader, outcome.revision)

    async def _resign(self, lease_id: int, term: int) -> do.Event:
        outcome = await self._etcd.commit(requests.resign(self._keys, term))
        leader = requests.found(outcome)
        return do.Answered(Call.RESIGN, lease_id, leader, outcome.revision)

    async def _revoke(self, lease_id: int) -> do.Event:
        await self._etcd.revoke(lease_id)
        return do.Revoked(lease_id)

    async def _watch(self) -> None:
        """Follow the leader and the members; read anew whenever the watch breaks."""
        async with aclosing(following(self._etcd, *requests.range_of(self._keys))) as seen:
            async for pairs, revision in seen:
                leader, members = requests.cluster(pairs.values(), self._keys)
                self._take(do.ClusterSeen(leader, members, revision))
                self._seen.set()
                self._seen = asyncio.Event()
