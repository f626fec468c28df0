"""Whatever is kept is read again, by every kind of journal alike: in memory, on SQLite, on etcd.

On etcd also if requests, answers and leaders get lost at any point, and what was late arrives.
``DRUMBEAT_SEEDS`` sets the number of orders.
"""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumbeat.coordinator.core.effects import KeepForgets
from drumbeat.coordinator.errors import JournalOutage, LostLeadership
from drumbeat.coordinator.journal import batches, layout
from drumbeat.coordinator.journal.contents import read_contents
from drumbeat.coordinator.journal.etcd.address import parse_etcd_address
from drumbeat.coordinator.journal.etcd.journal import EtcdJournal
from drumbeat.coordinator.journal.etcd.model import Etcd, Transaction, TransactionOutcome
from drumbeat.coordinator.journal.journal import Journal
from drumbeat.coordinator.journal.keys import Keys
from drumbeat.coordinator.journal.sqlite import SqliteJournal
from tests.support.etcd import EtcdCluster, needs_etcd
from tests.support.etcd_model import EtcdClientModel, EtcdModel, Fault
from tests.support.orders import orders
from tests.support.stories import KINDS, NAMES, Story, lead, shown

KEYS = Keys("test")
BATCHES = st.lists(
    st.lists(st.integers(0, KINDS * NAMES - 1), min_size=1, max_size=6), min_size=1, max_size=12
)
LOSSES = [Fault.REQUEST_LOST, Fault.ANSWER_LOST, Fault.LATE, Fault.TWICE]
FAULTS = st.lists(st.none() | st.sampled_from(LOSSES), max_size=30)


@pytest.fixture(scope="module", autouse=True)
def _small_parts() -> Iterator[None]:
    """Let snapshots be due soon, and values and batches be large soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("drumbeat.coordinator.journal.journal.RECORDS_PER_SNAPSHOT", 4)
        patch.setattr(layout, "PART_BYTES_MAX", 500)
        patch.setattr(batches, "BYTES_MAX", 700)
        patch.setattr(batches, "OPERATIONS_MAX", 4)
        patch.setattr(batches, "IMMEDIATE_MAX", 3)
        yield


async def check(open_journal: Callable[[], Awaitable[Journal]], numbers: list[list[int]]) -> None:
    """Write a story, and read it again after every batch."""
    story, expected = Story(), Journal()
    journal = await open_journal()
    for batch in numbers:
        effects = story.batch(batch)
        await expected.write(effects, now=story.now)
        await journal.write(effects, now=story.now)
        assert shown(journal) == shown(expected)
        await journal.close()
        journal = await open_journal()
        assert shown(journal) == shown(expected)
        assert list(journal.runs.states) == list(expected.runs.states)
    await journal.close()


async def opened(etcd: Etcd, keys: Keys) -> EtcdJournal:
    journal = EtcdJournal(etcd, keys, term=await lead(etcd, keys))
    await journal.load()
    return journal


@orders(10, steps=1)
@given(numbers=BATCHES)
def test_on_sqlite(numbers: list[list[int]]) -> None:
    async def open_journal(directory: Path) -> Journal:
        journal = SqliteJournal(directory)
        await journal.load()
        return journal

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(check(lambda: open_journal(Path(directory)), numbers))


@orders(100, steps=1)
@given(numbers=BATCHES)
def test_on_the_model_of_etcd(numbers: list[list[int]]) -> None:
    client = EtcdModel(now=0.0).client()
    asyncio.run(check(lambda: opened(client, KEYS), numbers))
    assert_nothing_is_left_over(client)


@needs_etcd
def test_on_etcd(etcd: EtcdCluster) -> None:
    from drumbeat.coordinator.journal.etcd.client import EtcdClient

    async def check_with_a_client(numbers: list[list[int]]) -> None:
        address = parse_etcd_address(etcd.url(etcd.new_prefix()))
        client = EtcdClient(address)
        try:
            await check(lambda: opened(client, Keys(address.prefix)), numbers)
        finally:
            await client.close()

    @orders(8, steps=1)
    @given(numbers=BATCHES)
    def check_all(numbers: list[list[int]]) -> None:
        asyncio.run(check_with_a_client(numbers))

    check_all()


@orders(100, steps=1)
@given(numbers=BATCHES, faults=FAULTS)
def test_what_gets_lost_or_comes_late_or_twice_does_no_harm(
    numbers: list[list[int]], faults: list[Fault | None]
) -> None:
    asyncio.run(check_faults(numbers, faults))


async def check_faults(numbers: list[list[int]], faults: list[Fault | None]) -> None:
    model = EtcdModel(now=0.0)
    client, left = model.client(), iter(faults)
    story, expected = Story(), Journal()
    journal = await opened(client, KEYS)
    for batch in numbers:
        effects = story.batch(batch)
        await expected.write(effects, now=story.now)
        while True:
            for fault in (next(left, None), next(left, None)):
                if fault is not None:
                    client.fail(fault)
            try:
                await journal.write(effects, now=story.now)
                break
            except JournalOutage:
                model.deliver_late()
        assert shown(journal) == shown(expected)
    model.deliver_late()
    client._faults.clear()
    assert shown(await opened(client, KEYS)) == shown(expected)
    model.deliver_late()
    assert shown(await opened(client, KEYS)) == shown(expected)
    assert_nothing_is_left_over(client)


class Interrupted:
    """An ``Etcd`` that lets another leader come before one of its transactions."""

    def __init__(self, etcd: EtcdClientModel, before: int, come: Callable[[], Awaitable[None]]):
        self._etcd, self._left, self._come = etcd, before, come

    async def commit(self, transaction: Transaction) -> TransactionOutcome:
        self._left -= 1
        if self._left == 0:
            await self._come()
        return await self._etcd.commit(transaction)

    def __getattr__(self, name: str) -> object:
        return getattr(self._etcd, name)


@orders(100, steps=1)
@given(numbers=BATCHES, before=st.integers(1, 40), is_late=st.booleans())
def test_a_leader_that_was_deposed_leaves_a_batch_whole_or_nothing_of_it(
    numbers: list[list[int]], before: int, is_late: bool
) -> None:
    # Of more points than one batch takes a part may be there: none of them belong together.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "IMMEDIATE_MAX", 100)
        asyncio.run(check_deposed(numbers, before, is_late=is_late))


async def check_deposed(numbers: list[list[int]], before: int, *, is_late: bool) -> None:
    model = EtcdModel(now=0.0)
    client, other = model.client(), model.client()
    found: list[EtcdJournal] = []

    async def come() -> None:
        found.append(await opened(other, KEYS))
        if is_late:
            client.fail(Fault.LATE, times=2)

    journal = EtcdJournal(cast("Etcd", Interrupted(client, before, come)), KEYS, term=0)
    journal.term = await lead(client, KEYS)
    story, told = Story(), Journal()
    states = [shown(told)]
    try:
        await journal.load()
        for batch in numbers:
            effects = story.batch(batch)
            await told.write(effects, now=story.now)
            states.append(shown(told))
            await journal.write(effects, now=story.now)
            states = states[-1:]
    except LostLeadership:
        assert found
    except JournalOutage:
        assert is_late
    if not found:
        return
    assert shown(found[0]) in states
    model.deliver_late()
    with pytest.raises((LostLeadership, AssertionError)):
        await journal.write(story.batch([2, 4, 5, 6]), now=story.now)
    # The next one writes on, and what it writes is there.
    effects = [KeepForgets(calls=("one", "two"))]
    await found[0].write(effects, now=story.now)
    again = await opened(other, KEYS)
    assert shown(again) == shown(found[0])
    assert again.runs.states == found[0].runs.states
    assert_nothing_is_left_over(other)


def assert_nothing_is_left_over(client: EtcdClientModel) -> None:
    """What batches that never came about have left is removed."""
    reading = client.model.state.read(*KEYS.all)
    contents = read_contents(KEYS, reading.pairs)
    assert contents.unfinished == []
    assert contents.problems == []
