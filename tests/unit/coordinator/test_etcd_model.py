"""The model of etcd that other tests use: its time, and the faults that it has on request.

What it answers is compared with a real etcd in ``tests/integration/coordinator``.
"""

import asyncio

import pytest

from drumbeat.coordinator.errors import JournalOutage
from drumbeat.coordinator.journal.etcd.model import (
    Put,
    Transaction,
)
from tests.support.etcd_model import EtcdClientModel, EtcdModel, Fault
from tests.support.etcd_state import Refused

BELOW = ("k/", "k0")


def put(key: str, value: bytes = b"v", lease_id: int = 0) -> Transaction:
    return Transaction(conditions=(), then=(Put(f"k/{key}", value, lease_id),))


@pytest.fixture
def model() -> EtcdModel:
    return EtcdModel(now=0.0)


@pytest.fixture
def client(model: EtcdModel) -> EtcdClientModel:
    return model.client()


async def keys(client: EtcdClientModel) -> list[str]:
    return [pair.key for pair in (await client.read(*BELOW)).pairs]


async def test_a_lease_takes_its_keys_with_it(model: EtcdModel, client: EtcdClientModel) -> None:
    lease = await client.grant(2.5)
    assert lease.ttl_s == 3.0
    assert (await client.grant(0.1)).ttl_s == 2.0
    for key in ("a", "b"):
        await client.commit(put(key, lease_id=lease.lease_id))
    await client.commit(put("b"))  # not bound any more
    model.advance(2.9)
    assert await client.keep_alive(lease.lease_id) == 3.0
    model.advance(2.9)
    assert await keys(client) == ["k/a", "k/b"]
    model.advance(0.2)
    assert await keys(client) == ["k/b"]
    assert await client.keep_alive(lease.lease_id) == 0.0
    await client.revoke(lease.lease_id)  # harmless


@pytest.mark.slow
async def test_in_real_time_a_lease_ends_by_itself() -> None:
    client = EtcdModel(ttl_min_s=0).client()
    lease = await client.grant(0.0)
    watch = client.watch(*BELOW, after=1)
    with pytest.raises(Refused):
        await client.commit(put("a", lease_id=lease.lease_id))
    lease = await client.grant(0.5)
    await client.commit(put("a", lease_id=lease.lease_id))
    assert (await anext(watch)).put
    assert (await anext(watch)).deleted == ("k/a",)


async def test_a_request_or_its_answer_gets_lost(client: EtcdClientModel) -> None:
    client.fail(Fault.REQUEST_LOST)
    client.fail(Fault.ANSWER_LOST)
    for key in ("lost", "arrived"):
        with pytest.raises(JournalOutage):
            await client.commit(put(key))
    assert await keys(client) == ["k/arrived"]


async def test_a_request_arrives_late_or_twice(model: EtcdModel, client: EtcdClientModel) -> None:
    client.fail(Fault.LATE)
    client.fail(Fault.TWICE)
    with pytest.raises(JournalOutage):
        await client.commit(put("late"))
    await client.commit(put("twice", b"old"))
    await client.commit(put("twice", b"new"))
    assert await keys(client) == ["k/twice"]
    model.deliver_late()
    late, twice = (await client.read(*BELOW)).pairs
    assert (late.value, twice.value) == (b"v", b"old")


async def test_a_request_or_its_answer_is_held(client: EtcdClientModel) -> None:
    for fault, seen in ((Fault.HELD, []), (Fault.ANSWER_HELD, ["k/b"])):
        client.fail(fault)
        key = "a" if fault is Fault.HELD else "b"
        held = asyncio.ensure_future(client.commit(put(key)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [found for found in await keys(client) if found == f"k/{key}"] == seen
        client.release()
        assert (await held).is_done


async def test_who_is_cut_off_hears_nothing_and_others_go_on(
    model: EtcdModel, client: EtcdClientModel
) -> None:
    other = model.client()
    watch = client.watch(*BELOW, after=1)
    waiting = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0)
    client.cut_off()
    with pytest.raises(JournalOutage):
        await waiting
    with pytest.raises(JournalOutage):
        await client.commit(put("a"))
    await other.commit(put("b"))
    client.reconnect()
    assert await keys(client) == ["k/b"]


async def test_without_majority_nothing_happens_and_no_lease_ends(
    model: EtcdModel, client: EtcdClientModel
) -> None:
    lease = await client.grant(3.0)
    await client.commit(put("a", lease_id=lease.lease_id))
    model.lose_majority()
    model.advance(60.0)
    with pytest.raises(JournalOutage):
        await client.read(*BELOW)
    model.regain_majority()
    assert await keys(client) == ["k/a"]
    model.advance(3.0)
    assert await keys(client) == []
