"""Shell. A coordinator as a member of a cluster: it serves a term whenever it leads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any

import structlog

from drumbeat.coordinator import errors
from drumbeat.coordinator.cluster.election import Election, SeenTerms
from drumbeat.coordinator.cluster.follower import Follower
from drumbeat.coordinator.cluster.model import Leader, Member
from drumbeat.coordinator.cluster.server import Server, crash_if_failed
from drumbeat.coordinator.cluster.service import Cluster
from drumbeat.coordinator.cluster.shared_authority import SharedAuthority
from drumbeat.coordinator.cluster.term import Term
from drumbeat.coordinator.journal.etcd.following import until_answered
from drumbeat.coordinator.journal.etcd.journal import EtcdJournal
from drumbeat.coordinator.journal.etcd.model import Etcd
from drumbeat.coordinator.journal.keys import Keys
from drumbeat.coordinator.shell.garbage import GARBAGE

log = structlog.get_logger()

# How long all agents may be disconnected. Those that can come back do so sooner, and agents are
# declared lost after 0.5 s.
DESERTED_S = 0.25


class ClusterMember(Cluster):
    """One of several coordinators on one etcd."""

    def __init__(
        self,
        etcd: Etcd,
        keys: Keys,
        member: Member,
        server: Server,
        *,
        ttl_s: float,
        seen_terms: SeenTerms | None = None,
    ) -> None:
        super().__init__(member)
        # Run whenever a term has begun; cancelled at its end.
        self.on_term: Callable[[Term], Coroutine[Any, Any, None]] | None = None
        self._server, self._etcd, self._keys = server, etcd, keys
        self._election = Election(
            etcd, keys, member, ttl_s=ttl_s, on_lead=self._lead, on_stop=self._stop
        )
        self._election.seen_terms = seen_terms
        self.follower = Follower(etcd, keys, self._election, self._is_serving)
        self._authority: SharedAuthority | None = None
        self._beginning: asyncio.Task[None] | None = None
        self._first_work: asyncio.Task[None] | None = None
        self._tasks = set[asyncio.Task[Any]]()
        self._deserted: asyncio.TimerHandle | None = None  # runs while all agents are away

    @property
    def members(self) -> tuple[Member, ...]:
        return self._election.core.members or (self.member,)

    @property
    def leader(self) -> Leader | None:
        return self._election.leader

    @property
    def reason(self) -> str:
        """Why no member leads, or the leader decides nothing yet; empty: one does."""
        if self._beginning is not None and self._election.is_leading:
            return "the one that leads reads the journal"
        return self._election.core.reason

    def _is_serving(self) -> bool:
        """Whether no other member can have decided anything that this one does not know."""
        return self._server.term is not None and self._election.is_leading

    def share(self, authority: SharedAuthority) -> None:
        """Follow the certificate authority of the cluster; call it before ``start``."""

        def replaced(keys: list[str]) -> None:
            self._start(asyncio.to_thread(self._server.authorities_changed, keys), "authority")

        authority.on_replaced = replaced
        authority.term = lambda: 0 if self._server.term is None else self._server.term.number
        self._authority = authority

    def start(self) -> None:
        """Join the cluster."""
        if self._authority is not None:
            self._start(self._authority.follow(), "authority")
        self._start(self.follower.follow_tokens(self._server.revoked), "tokens")
        self._start(self._election.run(), "election")

    async def wait_for_members(self, known: Collection[Member]) -> None:
        """Return once there is a member that is not among those known."""
        await self._election.wait_for_members(known)

    async def step_down(self, reason: str) -> Leader:
        if (term := self._server.term) is None:
            leader = self.leader
            is_other = leader is not None and leader.member != self.member
            raise errors.NotLeader(leader.address if leader and is_other else "", self.reason)
        if len(self.members) < 2:  # no need to pause decisions
            raise errors.CannotStepDown("there is no other one that could")
        try:
            async with term.driver.paused(self._election.core.ttl_s):
                return await self._election.step_down(reason)
        except TimeoutError:
            raise errors.CannotStepDown(
                term.driver.outage or "the journal does not answer"
            ) from None

    def _look_for_agents(self) -> None:
        """Have another member lead if no agent reaches this one, which would give them all up."""
        if self._server.term is not None and self._server.term.driver.registry.is_deserted:
            if self._deserted is None:
                loop = asyncio.get_running_loop()
                self._deserted = loop.call_later(DESERTED_S, self._is_deserted)
        else:
            self._forget_desertion()

    def _forget_desertion(self) -> None:
        if self._deserted is not None:
            self._deserted.cancel()
            self._deserted = None

    def _is_deserted(self) -> None:
        self._deserted = None
        if len(self.members) > 1:
            self._start(self._give_way(), "hand-over")

    async def _give_way(self) -> None:
        try:
            await self.step_down("all agents have lost it at once")
        except errors.CoordinatorError as error:
            log.warning("leadership", message="all agents are lost", reason=str(error))

    async def leave(self) -> None:
        """Leave the cluster, so that others can lead at once. Call it when nothing is served."""
        self._forget_desertion()
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if (term := self._server.follow(errors.NotLeader("", "it stops"))) is not None:
            await term.ended()
        await self._election.close()

    def _lead(self, term: int) -> None:
        self.follower.begins()
        self._beginning = self._start(self._begin(term), "term")

    def _stop(self, error: errors.NotLeader) -> None:
        for task in (self._beginning, self._first_work):
            if task is not None:
                task.cancel()
        self._beginning = self._first_work = None
        self._forget_desertion()
        if (term := self._server.follow(error)) is not None:
            self._start(_end(term), "end of a term")
            self._start(self._server.tell_health(), "health")
        self.follower.settled()

    async def _begin(self, number: int) -> None:
        """Serve a term that goes on from the journal, as soon as etcd answers."""

        async def restored() -> Term:
            journal = EtcdJournal(self._etcd, self._keys, term=number)
            is_successor = self._election.core.is_successor
            return await self._server.restored(journal, is_successor=is_successor)

        try:
            term = await until_answered(restored, _log_outage)
        except errors.LostLeadership:
            self._election.refused(number)
            return
        self._beginning = None
        self._server.lead(term, lambda owner: self._ended(number, owner))
        self.follower.settled()
        term.driver.on_turn = self._look_for_agents
        if self.on_term is not None:
            self._first_work = self._start(self.on_term(term), "first work of a term")
        await self._server.tell_health()

    def _ended(self, number: int, owner: asyncio.Task[None]) -> None:
        """Handle the end of a term that was not asked for."""
        if not owner.cancelled() and isinstance(owner.exception(), errors.LostLeadership):
            self._election.refused(number)
        else:
            crash_if_failed(owner)

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(crash_if_failed)
        return task


async def _end(term: Term) -> None:
    """Wait for the end of a term, and free its memory before another term reads the runs again."""
    await term.ended()
    await term.services.calls.ended()
    del term
    GARBAGE.collect()  # its objects refer to each other


def _log_outage(error: errors.JournalOutage) -> None:
    message = "nothing is decided until the journal can be read"
    log.error(message, reason=str(error), advice=error.hint)
