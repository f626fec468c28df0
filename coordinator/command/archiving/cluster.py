"""Shell. The journal on etcd on which no coordinator leads: read, written, checked."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec

from drumbeat.coordinator.access.authority import Issuer
from drumbeat.coordinator.cluster import transactions as leadership
from drumbeat.coordinator.cluster.model import Member
from drumbeat.coordinator.command.archiving.findings import Finding, Findings
from drumbeat.coordinator.errors import CallFailed, CommandFailed
from drumbeat.coordinator.journal.archive import Archive
from drumbeat.coordinator.journal.contents import Contents
from drumbeat.coordinator.journal.etcd.journal import EtcdJournal
from drumbeat.coordinator.journal.etcd.model import Delete, Etcd, IsCreated, Lease, Put, Transaction
from drumbeat.coordinator.journal.keys import Keys
from drumbeat.coordinator.journal.stored import Loaded, archive_of, load

# How long coordinators wait if an import is cut short; while it goes on the lease is kept.
LEASE_TTL_S = 15.0


_LIVE = "move etcd itself (etcdctl snapshot save, etcdutl snapshot restore), or end the runs first"


class EtcdPlace:
    """A place of a journal. Who writes leads, as a coordinator does, and so fences all others."""

    def __init__(self, name: str, etcd: Etcd, keys: Keys) -> None:
        self.name = name
        self._etcd, self._keys = etcd, keys

    async def read(self) -> Archive:
        """Return what is in it, as it was at one revision at which none led."""
        loaded = await self._loaded()
        contents = loaded.contents
        if contents.leader is not None:
            raise self._led(contents)
        if contents.head is None and not contents.problems:
            problem = f"there is no journal at {self.name}"
            raise CallFailed(problem, 2, "the prefix after the hosts is part of the address")
        return archive_of(loaded, counts_downtime=True)

    async def write(self, archive: Archive) -> None:
        """Have in it what is in an archive. Raises ``CallFailed`` if there is something."""
        async with self._leading() as term:
            contents = (await self._loaded()).contents
            if contents.head is not None and contents.head.is_partial:
                await self._clear(term)  # an import was cut short
                contents = (await self._loaded()).contents
            if not contents.is_empty or contents.authority or contents.problems:
                hint = (
                    f"give another prefix, or remove it: etcdctl del --prefix {self._keys.prefix}"
                )
                raise CallFailed(f"the journal at {self.name} is not empty", 2, hint)
            if term <= archive.term and any(state.verdict is None for state in archive.runs):
                # A term is a revision of etcd, and agents of live runs refuse earlier ones.
                problem = (
                    f"etcd has had {term} changes, and a term of the journal was {archive.term}"
                )
                raise CallFailed(f"runs that live cannot go on there: {problem}", 2, _LIVE)
            try:
                await self._write(archive, term)
            except BaseException:
                await self._clear(term)
                raise

    async def check(self) -> Findings:
        """Say what is in it, and what cannot be read; a coordinator may lead meanwhile."""
        loaded = await self._loaded()
        contents = loaded.contents
        findings = Findings.of(self.name, contents, loaded.runs.states.values())
        findings.leader = "" if contents.leader is None else self._leader(contents)
        if contents.authority is not None:
            try:
                Issuer.parse(contents.authority)
            except ValueError as error:
                findings.problems.append(Finding(self._keys.authority, str(error)))
        return findings

    async def _loaded(self) -> Loaded:
        return load(self._keys, (await self._etcd.read(*self._keys.all)).pairs)

    async def _write(self, archive: Archive, term: int) -> None:
        journal = EtcdJournal(self._etcd, self._keys, term=term)
        await journal.load()
        if archive.authority:
            absent = IsCreated(self._keys.authority, 0)
            put = Put(self._keys.authority, archive.authority.encode())
            await self._commit(term, put, absent)
        await journal.restore(archive.changes(), clock=archive.clock_at(time.time()))

    async def _clear(self, term: int) -> None:
        """Take back what was written: who tries again finds nothing."""
        keys = self._keys
        single = ((key, "") for key in (keys.forgets, keys.authority, keys.head))
        ranges = (keys.runs, keys.tokens, keys.drains, keys.quorums, *single)
        with suppress(CommandFailed):
            await self._commit(term, *(Delete(*span) for span in ranges))

    async def _commit(self, term: int, *steps: Put | Delete | IsCreated) -> None:
        conditions = [step for step in steps if isinstance(step, IsCreated)]
        operations = tuple(step for step in steps if not isinstance(step, IsCreated))
        leads = IsCreated(self._keys.leader, term)
        await self._etcd.commit(Transaction((leads, *conditions), operations))

    @asynccontextmanager
    async def _leading(self) -> AsyncIterator[int]:
        """Lead meanwhile, so that no coordinator does."""
        lease = await self._etcd.grant(LEASE_TTL_S)
        kept: asyncio.Task[None] | None = None
        try:
            member = Member(uuid.uuid4().hex, "")
            asked = leadership.campaign(self._keys, member, lease.lease_id)
            outcome = await self._etcd.commit(asked)
            if not outcome.is_done:
                raise self._led((await self._loaded()).contents)
            kept = asyncio.create_task(self._keep(lease))
            yield outcome.revision
        finally:
            if kept is not None:
                kept.cancel()
            with suppress(CommandFailed):  # it ends by itself
                await self._etcd.revoke(lease.lease_id)

    async def _keep(self, lease: Lease) -> None:
        """Keep leading for as long as it takes; a lease that is lost shows in the next write."""
        while True:
            await asyncio.sleep(lease.ttl_s / 3)
            with suppress(CommandFailed):
                await self._etcd.keep_alive(lease.lease_id)

    def _led(self, contents: Contents) -> CallFailed:
        problem = f"the coordinator {self._leader(contents)} leads on {self.name}"
        return CallFailed(
            problem, 2, "end all coordinators first, so that nothing changes meanwhile"
        )

    def _leader(self, contents: Contents) -> str:
        try:
            value = b"" if contents.leader is None else contents.leader.value
            return msgspec.json.decode(value, type=Member).address or "that is importing now"
        except msgspec.DecodeError:
            return "of another version"
