"""Coordinators that only take part in elections, and what they were told."""

from __future__ import annotations

import asyncio

from drumbeat.coordinator.cluster.election import Election
from drumbeat.coordinator.cluster.model import Leader, Member
from drumbeat.coordinator.errors import NotLeader
from drumbeat.coordinator.journal.etcd.model import Etcd
from drumbeat.coordinator.journal.keys import Keys
from tests.support.waiting import MS, wait_until

DEADLINE_S = 10_000 * MS


class Candidate:
    """One of them; it runs from the start. ``events``: terms to lead, and why it stops."""

    def __init__(self, etcd: Etcd, keys: Keys, name: str, *, ttl_s: float, host: str = "") -> None:
        self.events: list[int | NotLeader] = []
        self.member = Member(name, f"{host or name}:29400", "1.0")
        self.election = Election(
            etcd,
            keys,
            self.member,
            ttl_s=ttl_s,
            on_lead=self.events.append,
            on_stop=self.events.append,
        )
        self.task = asyncio.create_task(self.election.run())

    @property
    def leader(self) -> Leader | None:
        """Who leads, as it knows."""
        return self.election.leader

    async def leads(self, after: int = 0) -> int:
        """Wait until it leads in a term later than that, and return the term."""

        def leads() -> int:
            leader = self.leader
            is_new = leader is not None and leader.term > after
            return leader.term if leader and is_new and self.election.is_leading else 0

        return await wait_until(leads, DEADLINE_S, lambda: (self.events, self.election.core.reason))

    async def follows(self, other: Candidate) -> None:
        """Wait until it knows that another one leads."""
        await wait_until(lambda: self.leader and self.leader.member == other.member, DEADLINE_S)

    async def knows(self, count: int) -> None:
        """Wait until it knows so many members."""
        await wait_until(lambda: len(self.election.core.members) == count, DEADLINE_S)

    async def end(self) -> None:
        """End as by SIGKILL: etcd hears nothing of it."""
        self.task.cancel()
        await asyncio.wait({self.task})
