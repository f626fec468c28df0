"""The authority of a cluster: one for all coordinators, which the leader replaces."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from drumbeat.access.certificates import trust_anchors
from drumbeat.coordinator import errors
from drumbeat.coordinator.access.authority import Authority
from drumbeat.coordinator.cluster.shared_authority import SharedAuthority
from drumbeat.coordinator.journal.etcd.model import Delete, Put, Transaction
from drumbeat.coordinator.journal.keys import Keys
from tests.support.etcd_model import EtcdClientModel, EtcdModel, Fault
from tests.support.tls import serving
from tests.support.waiting import MS, wait_until

KEYS = Keys("test")
DEADLINE_S = 10_000 * MS


@asynccontextmanager
async def following(authority: SharedAuthority) -> AsyncIterator[None]:
    task = asyncio.create_task(authority.follow())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def led(etcd: EtcdClientModel) -> int:
    """Put the key of a leader; return the term."""
    return (await etcd.commit(Transaction((), (Put(KEYS.leader, b"{}"),)))).revision


async def rotated(authority: SharedAuthority) -> list[str]:
    return await asyncio.to_thread(authority.rotate)


async def test_coordinators_that_start_together_have_one_authority(tmp_path: Path) -> None:
    model = EtcdModel()
    late = model.client()
    late.fail(Fault.HELD)
    opening = asyncio.create_task(SharedAuthority.open(late, KEYS, tmp_path))
    await wait_until(lambda: late.requests == ["read", "commit"], DEADLINE_S)
    first = await SharedAuthority.open(model.client(), KEYS, tmp_path)
    late.release()
    second = await opening
    assert first.keys == second.keys
    async with serving(second) as server:
        assert await server.lets_in(trust_anchors(first.keys))


async def test_the_first_one_brings_the_authority_of_its_state_directory(tmp_path: Path) -> None:
    model, own = EtcdModel(), Authority(tmp_path)
    assert (await SharedAuthority.open(model.client(), KEYS, tmp_path)).keys == own.keys
    (tmp_path / "other").mkdir()
    Authority(tmp_path / "other")
    second = await SharedAuthority.open(model.client(), KEYS, tmp_path / "other")
    assert second.keys == own.keys


async def test_what_the_leader_replaces_all_serve(tmp_path: Path) -> None:
    model = EtcdModel()
    ours = await SharedAuthority.open(model.client(), KEYS, tmp_path)
    theirs = await SharedAuthority.open(model.client(), KEYS, tmp_path)
    term = await led(model.client())
    ours.term = lambda: term
    told: list[list[str]] = []
    theirs.on_replaced = told.append
    async with following(ours), following(theirs), serving(theirs) as server:
        (old,) = theirs.keys
        new, _ = await rotated(ours)
        await wait_until(lambda: told == [[new, old]], DEADLINE_S)
        assert theirs.keys == [new, old]
        assert await server.lets_in(trust_anchors([new]))
        assert await server.lets_in(trust_anchors([old]))
        assert await asyncio.to_thread(ours.retire) == [new]
        await wait_until(lambda: told[1:] == [[new]], DEADLINE_S)
        assert not await server.lets_in(trust_anchors([old]))
        assert len(await rotated(ours)) == 2, "and so on"


async def test_only_who_leads_replaces_it(tmp_path: Path) -> None:
    model = EtcdModel()
    ours = await SharedAuthority.open(model.client(), KEYS, tmp_path)
    with pytest.raises(errors.NotLeader):
        await rotated(ours)
    term = await led(model.client())
    ours.term = lambda: term
    await model.client().commit(Transaction((), (Delete(KEYS.leader),)))
    await led(model.client())
    with pytest.raises(errors.Unavailable, match="does not lead any more"):
        await rotated(ours)
    assert len(ours.keys) == 1


async def test_a_replacement_whose_answer_is_lost_is_found_out(tmp_path: Path) -> None:
    model = EtcdModel()
    etcd = model.client()
    ours = await SharedAuthority.open(etcd, KEYS, tmp_path)
    term = await led(model.client())
    ours.term = lambda: term
    async with following(ours):
        etcd.fail(Fault.ANSWER_LOST)
        with pytest.raises(errors.Unavailable, match="what is served tells"):
            await rotated(ours)
        await wait_until(lambda: len(ours.keys) == 2, DEADLINE_S)
        assert len(await rotated(ours)) == 3


async def test_what_cannot_be_read_changes_nothing_and_keeps_others_from_starting(
    tmp_path: Path,
) -> None:
    model = EtcdModel()
    etcd = model.client()
    ours = await SharedAuthority.open(etcd, KEYS, tmp_path)
    keys = ours.keys
    async with following(ours), serving(ours) as server:
        for value in (b"", b"no key", b"x" * 1_000_000):
            await etcd.commit(Transaction((), (Put(KEYS.authority, value),)))
            with pytest.raises(errors.AuthorityUnusable, match="test/authority: it "):
                await SharedAuthority.open(model.client(), KEYS, tmp_path)
        await etcd.commit(Transaction((), (Delete(KEYS.authority),)))
        await asyncio.sleep(0)
        assert ours.keys == keys
        assert await server.lets_in(trust_anchors(keys))
