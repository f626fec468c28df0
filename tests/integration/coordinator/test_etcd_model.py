"""The model of etcd that tests use, and a real etcd: the same requests have the same answers."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from random import Random

import pytest
from msgspec.structs import replace

from drumbeat.coordinator.errors import CommandFailed, JournalOutage, JournalUnusable
from drumbeat.coordinator.journal.etcd.address import parse_etcd_address
from drumbeat.coordinator.journal.etcd.model import (
    Changed,
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
from tests.support.etcd import EtcdCluster, needs_etcd
from tests.support.etcd_model import EtcdModel
from tests.support.etcd_state import OPERATIONS_MAX, REQUEST_BYTES_MAX

pytestmark = needs_etcd

STEPS = 250
# No lease ends by itself in a test, and one that was never granted.
TTL_S, NO_LEASE = 600.0, 12345


class Pair:
    """The two, which agree on the revision from the start, but not on names of leases."""

    def __init__(self, real: Etcd, model: EtcdModel, prefix: str, random: Random) -> None:
        self.real, self.model = real, model.client()
        self.all = prefix, f"{prefix}~"
        self._keys = [f"{prefix}{number}" for number in range(5)]
        self._random = random
        self._leases: dict[int, int] = {NO_LEASE: NO_LEASE}  # of the model, as the real one has it
        self._values = 0
        self._pairs: dict[str, KeyValue] = {}

    async def step(self) -> None:
        """Ask both for something at random."""
        match self._random.choices(["commit", "read", "grant", "revoke"], weights=(14, 3, 1, 1)):
            case ["commit"]:
                await self.expect_same(self._transaction())
            case ["read"]:
                where = self._range()
                real, model = await self.real.read(*where), await self.model.read(*where)
                assert self._translated((real.pairs,)) == (model.pairs,)
                assert real.revision == model.revision
                self._pairs = {pair.key: pair for pair in (await self.model.read(*self.all)).pairs}
            case ["grant"]:
                real_lease, lease = await self.real.grant(TTL_S), await self.model.grant(TTL_S)
                assert real_lease.ttl_s == lease.ttl_s
                self._leases[lease.lease_id] = real_lease.lease_id
                assert await self.real.keep_alive(real_lease.lease_id) == TTL_S
                assert await self.model.keep_alive(lease.lease_id) == TTL_S
            case ["revoke"]:
                lease_id = self._random.choice(list(self._leases))
                real_id = self._leases[lease_id]
                await self.real.revoke(real_id)
                await self.model.revoke(lease_id)
                assert await self.real.keep_alive(real_id) == 0.0
                assert await self.model.keep_alive(lease_id) == 0.0

    async def expect_same(
        self, transaction: Transaction
    ) -> TransactionOutcome | type[CommandFailed]:
        """Have both do a transaction."""
        then = tuple(
            replace(each, lease_id=self._leases.get(each.lease_id, 0))
            if isinstance(each, Put)
            else each
            for each in transaction.then
        )
        real = await _outcome(self.real, replace(transaction, then=then))
        model = await _outcome(self.model, transaction)
        if isinstance(real, TransactionOutcome):
            real = replace(real, reads=self._translated(real.reads))
        assert real == model, transaction
        return model

    def _translated(
        self, reads: tuple[tuple[KeyValue, ...], ...]
    ) -> tuple[tuple[KeyValue, ...], ...]:
        names = {real: model for model, real in self._leases.items()} | {0: 0}
        return tuple(
            tuple(replace(pair, lease_id=names[pair.lease_id]) for pair in pairs) for pairs in reads
        )

    def _transaction(self) -> Transaction:
        random = self._random
        return Transaction(
            conditions=tuple(self._condition() for _ in range(random.choice([0, 0, 1, 2]))),
            then=tuple(self._operation() for _ in range(random.choice([0, 1, 1, 2, 3]))),
            otherwise=tuple(Get(*self._range()) for _ in range(random.choice([0, 1]))),
        )

    def _condition(self) -> IsCreated | IsModified:
        random, key = self._random, self._random.choice(self._keys)
        pair = self._pairs.get(key)
        created, modified = (pair.create_revision, pair.mod_revision) if pair else (0, 0)
        return IsCreated(key, created) if random.random() < 0.5 else IsModified(key, modified)

    def _operation(self) -> Put | Delete | Get:
        random = self._random
        match random.choice(["put", "put", "delete", "get"]):
            case "put":
                self._values += 1
                lease_id = random.choice([0, 0, 0, *self._leases])
                return Put(random.choice(self._keys), str(self._values).encode(), lease_id)
            case "delete":
                return Delete(*self._range())
            case _:
                return Get(*self._range())

    def _range(self) -> tuple[str, str]:
        one, other = self._random.choices(self._keys, k=2)
        return self._random.choice([(one, ""), (one, other), self.all])


async def _outcome(
    client: Etcd, transaction: Transaction
) -> TransactionOutcome | type[CommandFailed]:
    try:
        return await client.commit(transaction)
    except JournalUnusable:
        return JournalUnusable


@pytest.fixture
async def pair(etcd: EtcdCluster, request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    from drumbeat.coordinator.journal.etcd.client import EtcdClient

    prefix = etcd.new_prefix()
    client = EtcdClient(parse_etcd_address(etcd.url(prefix)))
    model = EtcdModel(now=0.0)
    model.state.revision = (await client.read(prefix, "")).revision
    yield Pair(client, model, f"{prefix}/", Random(getattr(request, "param", 0)))
    await client.close()


@pytest.mark.parametrize("pair", range(2), indirect=True)
async def test_random_requests_have_the_same_answers(pair: Pair) -> None:
    start = (await pair.model.read(*pair.all)).revision
    for _ in range(STEPS):
        await pair.step()
    model = await pair.model.read(*pair.all)
    for client in (pair.real, pair.model):
        assert await _folded(client, pair.all, after=start, until=model.revision) == {
            each.key: (each.value, each.mod_revision) for each in model.pairs
        }


async def _folded(
    client: Etcd, where: tuple[str, str], *, after: int, until: int
) -> dict[str, tuple[bytes, int]]:
    """Return what a watch says became of keys."""
    end = Transaction(conditions=(), then=(Put(f"{where[0]}end", b""),))
    latest = (await client.commit(end)).revision
    pairs: dict[str, tuple[bytes, int]] = {}
    changed = Changed(revision=0)
    async with aclosing(client.watch(*where, after=after)) as changes:
        while changed.revision < latest:
            changed = await anext(changes)
            for key in changed.deleted:
                pairs.pop(key, None)
            pairs |= {each.key: (each.value, each.mod_revision) for each in changed.put}
    del pairs[f"{where[0]}end"]
    assert latest > until
    return pairs


async def test_both_refuse_what_is_too_much(pair: Pair) -> None:
    key = pair.all[0]
    for size in (REQUEST_BYTES_MAX - 200, REQUEST_BYTES_MAX):
        await pair.expect_same(Transaction((), (Put(key, bytes(size)),)))
    for count in (OPERATIONS_MAX, OPERATIONS_MAX + 1):
        puts = tuple(Put(f"{key}{number}", b"") for number in range(count))
        await pair.expect_same(Transaction((), puts))


async def test_both_forget_history(pair: Pair) -> None:
    key = pair.all[0]
    for _ in range(5):
        outcome = await pair.expect_same(Transaction((), (Put(key, b""),)))
    assert isinstance(outcome, TransactionOutcome)
    for client in (pair.real, pair.model):
        await client.compact(outcome.revision)
        await client.compact(outcome.revision - 1)  # harmless
        with pytest.raises(JournalUnusable):
            await client.compact(outcome.revision + 1000)
        async with aclosing(client.watch(key, "", after=outcome.revision - 3)) as changes:
            with pytest.raises(JournalOutage):
                await anext(changes)
