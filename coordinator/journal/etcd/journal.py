"""Shell. A journal on etcd, which only the coordinator that leads can write.

Each transaction requires that its term still holds and that it follows the latest one. So writes of
a deposed leader, and late writes, have no effect.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import structlog
from msgspec.structs import replace

from drumbeat import VERSION
from drumbeat.coordinator import errors
from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.journal import layout
from drumbeat.coordinator.journal.batches import (
    OPERATIONS_MAX,
    Batch,
    Change,
    Operation,
    plan,
    split,
)
from drumbeat.coordinator.journal.etcd.model import (
    Delete,
    Etcd,
    Get,
    IsCreated,
    IsModified,
    KeyValue,
    Put,
    Transaction,
    TransactionOutcome,
)
from drumbeat.coordinator.journal.keys import Keys
from drumbeat.coordinator.journal.layout import Head, Unreadable
from drumbeat.coordinator.journal.stored import (
    Host,
    StoredJournal,
    load,
    this_host,
    unreadable,
)

log = structlog.get_logger()

# When a member of etcd dies, its calls fail, and later ones go to another member. So a call is
# tried twice before its failure counts as an outage.
TRIES = 2
# etcd keeps old values of keys until it is compacted. After so many writes or bytes it is compacted
# up to the time before, so that others that watch the same etcd have that long to catch up.
COMPACT_WRITES = 10_000
COMPACT_BYTES = 128 * 1024 * 1024

# A larger journal is read in a thread, so that the lease is kept alive meanwhile. This takes 30 ms.
READ_AT_ONCE_BYTES = 512 * 1024

_HINT = (
    "restore a snapshot of etcd, or save what can be read with `coordinator journal export` and "
    "import it below another prefix; `coordinator journal check` names all that is damaged"
)
_IMPORT_AGAIN = "run `coordinator journal import` again, which removes what is there"

Result = TypeVar("Result")


class _UnderWay:
    """Effects that are being written, in one or several calls of ``write``."""

    def __init__(self, effects: Sequence[fx.Effect], changes: Sequence[Change], now: float) -> None:
        self.effects, self.now = effects, now
        self.groups = deque(split(changes))
        self.batch: Batch | None = None  # of the first group
        self.written = 0  # of its transactions


class EtcdJournal(StoredJournal):
    """The journal of one term, which begins with ``load``.

    A write that raises ``JournalOutage`` may have happened, or may happen later; repeated, it
    happens once. One that is not repeated is finished before the next.
    """

    def __init__(self, etcd: Etcd, keys: Keys, *, term: int, host: Host | None = None) -> None:
        super().__init__(keys)
        self.term = term
        self._etcd, self._host = etcd, host or this_host()
        self._revision = 0  # of the head
        self._under_way: _UnderWay | None = None
        self._history_from = 0  # what is before is forgotten next
        self._history_writes = self._history_bytes = 0

    async def load(self) -> float:
        """Fence earlier writes of this term, and read everything; return the clock's offset."""
        head = await self._take_over()
        reading = await self._patiently(lambda: self._etcd.read(*self._keys.all))
        self._history_from = reading.revision
        if sum(len(pair.value) for pair in reading.pairs) <= READ_AT_ONCE_BYTES:
            loaded = load(self._keys, reading.pairs)
        else:
            loaded = await asyncio.to_thread(load, self._keys, reading.pairs)
        self._adopt(loaded)
        unfinished = loaded.contents.unfinished
        # Their batch was never finished, and the next one has the same number.
        for at in range(0, len(unfinished), OPERATIONS_MAX):
            keys = unfinished[at : at + OPERATIONS_MAX]
            now = self._host.monotonic() + head.offset
            await self._commit(tuple(map(Delete, keys)), batch=head.batch, now=now)
        return head.offset

    async def write(self, effects: Sequence[fx.Effect], *, now: float) -> None:
        """Make changes durable, all or none, and show them to readers."""
        if self._under_way is not None and self._under_way.effects != effects:
            await self._finish(self._under_way)
        if self._under_way is None:
            if not (changes := self.changes(effects)):
                return
            self._under_way = _UnderWay(effects, changes, now)
        await self._finish(self._under_way)
        await self._forget_history()

    async def restore(self, changes: Sequence[Change], *, clock: float) -> None:
        """Write what another journal held into an empty one, and set the coordinator's clock."""
        assert self._head is not None, "it is loaded first"
        offset = clock - self._host.monotonic()
        self._head = replace(self._head, offset=offset, is_partial=True)
        await self._finish(_UnderWay((), changes, clock))
        self._head = replace(self._head, is_partial=False)
        await self._commit((), batch=self._head.batch, now=clock)

    async def _finish(self, under_way: _UnderWay) -> None:
        """Write the rest."""
        while under_way.groups:
            if under_way.batch is None:
                under_way.batch = self._plan(under_way.groups[0])
                under_way.written = 0
            batch = under_way.batch
            for operations in batch.transactions[under_way.written :]:
                is_last = under_way.written + 1 == len(batch.transactions)
                number = batch.number if is_last else batch.number - 1
                await self._commit(operations, batch=number, now=under_way.now)
                under_way.written += 1
            self._homes = batch.homes
            self.take(batch.changes)
            under_way.groups.popleft()
            under_way.batch = None
        self._under_way = None

    def _plan(self, changes: Sequence[Change]) -> Batch:
        assert self._head is not None, "it is loaded first"
        number = self._head.batch + 1
        return plan(changes, number=number, keys=self._keys, homes=self._homes, release=VERSION)

    async def _take_over(self) -> Head:
        """Write the first head of the term."""
        look = Transaction(
            conditions=(IsCreated(self._keys.leader, self.term),), then=(Get(self._keys.head),)
        )
        outcome = await self._patiently(lambda: self._etcd.commit(look))
        if not outcome.is_done:
            raise self._lost()
        (heads,) = outcome.reads
        before, self._revision = Head.none(), 0
        if heads:
            before, self._revision = self._decoded(heads[0]), heads[0].mod_revision
            if before.is_partial:
                problem = "an import into it did not finish"
                raise errors.JournalUnusable(self._keys.head, problem, hint=_IMPORT_AGAIN)
        elif (await self._patiently(lambda: self._etcd.read(*self._keys.runs))).pairs:
            # Another leader may have written since the head was read.
            if not (await self._patiently(lambda: self._etcd.commit(look))).is_done:
                raise self._lost()
            raise errors.JournalCorrupt(self._keys.head, layout.HEAD_MISSING, hint=_HINT)
        head = self._host.take_over(before, counts_downtime=True)
        self._head = replace(head, term=self.term)
        await self._commit((), batch=before.batch, now=self._host.monotonic() + head.offset)
        return self._head

    async def _commit(self, operations: Sequence[Operation], *, batch: int, now: float) -> None:
        """Do operations as the next write of this term. Raises ``LostLeadership``."""
        before, keys = self._head, self._keys
        assert before is not None, "it is loaded first"
        head = replace(
            before, sequence=before.sequence + 1, batch=batch, clock=now, wall=self._host.wall()
        )
        transaction = Transaction(
            conditions=(IsCreated(keys.leader, self.term), IsModified(keys.head, self._revision)),
            then=(Put(keys.head, layout.encode_head(keys, head, release=VERSION)), *operations),
            otherwise=(Get(keys.leader), Get(keys.head)),
        )
        outcome = await self._patiently(lambda: self._etcd.commit(transaction))
        self._revision = outcome.revision if outcome.is_done else self._arrived(outcome, head)
        self._head = head
        self._history_writes += 1
        self._history_bytes += sum(len(put.value) for put in operations if isinstance(put, Put))

    def _arrived(self, outcome: TransactionOutcome, head: Head) -> int:
        """Return the revision of a write that an earlier try did. Raises ``LostLeadership``."""
        leaders, heads = outcome.reads
        if not leaders or leaders[0].create_revision != self.term or not heads:
            raise self._lost()
        stored = self._decoded(heads[0])
        if (stored.term, stored.sequence) != (head.term, head.sequence):
            raise self._lost()
        return heads[0].mod_revision

    async def _patiently(self, ask: Callable[[], Awaitable[Result]]) -> Result:
        """Ask again at once if there is no answer."""
        for _ in range(TRIES - 1):
            try:
                return await ask()
            except errors.JournalFull:
                raise
            except errors.JournalOutage:
                continue
        return await ask()

    async def _forget_history(self) -> None:
        if self._history_writes < COMPACT_WRITES and self._history_bytes < COMPACT_BYTES:
            return
        before, self._history_from = self._history_from, self._revision
        self._history_writes = self._history_bytes = 0
        try:
            await self._etcd.compact(before)
        except errors.CommandFailed as error:  # it is repeated later, and nothing waits for it
            log.debug("etcd was not compacted", reason=str(error))

    def _decoded(self, pair: KeyValue) -> Head:
        """Read a head. Raises ``JournalCorrupt`` or ``JournalUnusable``."""
        try:
            return layout.decode_head(self._keys, pair.value)
        except Unreadable as error:
            raise unreadable(pair.key, error, _HINT) from error

    def _lost(self) -> errors.LostLeadership:
        return errors.LostLeadership(self._keys.prefix.rstrip("/"))
