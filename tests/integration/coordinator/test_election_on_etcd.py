"""Elections on a real etcd: that its leases and watches are what the model of it says."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from drumbeat.coordinator.cluster.shared_authority import SharedAuthority
from drumbeat.coordinator.errors import NotLeader
from drumbeat.coordinator.journal.etcd.address import parse_etcd_address
from drumbeat.coordinator.journal.etcd.client import EtcdClient
from drumbeat.coordinator.journal.keys import Keys
from tests.support.candidates import DEADLINE_S, Candidate
from tests.support.etcd import EtcdCluster, needs_etcd
from tests.support.proxy import Proxy
from tests.support.waiting import MS, wait_until

pytestmark = needs_etcd

TTL_S = 2.0  # the least that etcd grants


@asynccontextmanager
async def candidates(*urls: str) -> AsyncIterator[list[tuple[Candidate, EtcdClient]]]:
    """Yield a candidate for each way to etcd, of which the first leads."""
    from drumbeat.coordinator.journal.etcd.client import EtcdClient

    found: list[tuple[Candidate, EtcdClient]] = []
    try:
        for number, url in enumerate(urls):
            address = parse_etcd_address(url)
            client = EtcdClient(address)
            one = Candidate(client, Keys(address.prefix), f"c{number}", ttl_s=TTL_S)
            found.append((one, client))
            await found[0][0].leads()
        for one, _ in found:
            await one.follows(found[0][0])
            await one.knows(len(urls))
        yield found
    finally:
        for one, client in found:
            await one.end()
            await one.election.close()
            await client.close()


@pytest.mark.slow
async def test_leadership_is_handed_over_and_taken_over(etcd: EtcdCluster) -> None:
    prefix = etcd.new_prefix()
    async with candidates(*[etcd.url(prefix)] * 2) as ((a, _), (b, _)):
        first = await a.leads()
        leader = await a.election.step_down("maintenance")
        assert (leader.member, leader.term > first) == (b.member, True)
        await b.end()
        taken = await a.election.wait_for_leader(leader.term, DEADLINE_S)
        assert taken is not None
        assert taken.member == a.member
        terms = [each for each in a.events if isinstance(each, int)]
        assert terms == [first, taken.term]


@pytest.mark.slow
async def test_who_is_cut_off_stops_before_another_one_leads(etcd: EtcdCluster) -> None:
    prefix = etcd.new_prefix()
    with Proxy(etcd.members[0].address) as link:
        async with candidates(etcd.url(prefix, [link.address]), etcd.url(prefix)) as found:
            await cut_off(link, *[one for one, _ in found])


async def cut_off(link: Proxy, a: Candidate, b: Candidate) -> None:
    term = await a.leads()
    link.stall(up=True, down=True)
    leads: list[bool] = []
    waiting = asyncio.create_task(b.leads(after=term))
    while not waiting.done():
        leads.append(a.election.is_leading)
        await asyncio.wait({waiting}, timeout=5 * MS)
    assert leads[0]
    assert not leads[-1], "its own clock told it before"
    assert isinstance(a.events[1], NotLeader)
    link.restore()
    await a.follows(b)


async def test_one_authority_is_shared_and_replaced(etcd: EtcdCluster, tmp_path: Path) -> None:
    prefix = etcd.new_prefix()
    keys = Keys(prefix)
    async with candidates(*[etcd.url(prefix)] * 2) as ((a, first), (_, second)):
        ours = await SharedAuthority.open(first, keys, tmp_path)
        theirs = await SharedAuthority.open(second, keys, tmp_path)
        assert ours.keys == theirs.keys
        term = await a.leads()
        ours.term = theirs.term = lambda: term
        following = asyncio.create_task(theirs.follow())
        assert len(await asyncio.to_thread(ours.rotate)) == 2
        await wait_until(lambda: theirs.keys == ours.keys, DEADLINE_S)
        ours.term = lambda: term - 1
        with pytest.raises(Exception, match="does not lead any more"):
            await asyncio.to_thread(ours.rotate)
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
