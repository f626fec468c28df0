"""An agent that is told of several coordinators finds the one that leads, whatever they say."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import pytest

from drumbeat.agent.core.events import SessionLost, SessionWelcomed
from drumbeat.agent.core.link import CoordinatorLink
from drumbeat.agent.core.model import Beat
from drumbeat.agent.errors import AccessRefused
from drumbeat.agent.session import grpc_transport, session
from drumbeat.agent.session.spool import Spooled
from drumbeat.model import GroupState
from drumbeat.v1 import common_pb2, failure_pb2
from tests.support.fake_coordinator import (
    DEADLINE_S,
    UNAUTHENTICATED,
    FakeCoordinator,
    fake_coordinator,
    not_leading,
)
from tests.support.proxy import Proxy
from tests.support.sessions import KEY, Lone, a_lone_agent
from tests.support.waiting import MS, wait_until

BEAT = Beat(
    state=GroupState.IDLE, round_id=None, master_port=4000, failures_written=0, workers_alive=0
)


class Seeker:
    """The part of an agent that holds its sessions, and nothing else of it."""

    def __init__(self, lone: Lone) -> None:
        self.lone, self.link = lone, CoordinatorLink(lone.config)
        self.asked: list[str] = []
        self.waits = 0
        self.refused = asyncio.Event()
        self._welcomed: asyncio.Queue[SessionWelcomed] = asyncio.Queue()

    async def run(self) -> None:
        """Open one session after the other, until it is refused for good."""
        self.link.begin(now=time.monotonic())
        delay_s = 0.0
        while True:
            opening = self.link.opening(delay_s, BEAT)
            self.asked.append(opening.address)
            self.lone.open(opening)
            while not isinstance(event := await self.lone.events.get(), SessionLost):
                if isinstance(event, SessionWelcomed) and event.term:
                    self.link.welcomed(event)
                    self._welcomed.put_nowait(event)
            if (refusal := self.link.refusal(event)) is not None:
                assert isinstance(refusal, AccessRefused)
                self.refused.set()
                return
            delay_s = self.link.lost(event, now=time.monotonic())
            self.waits += delay_s > 0

    async def find_leader(self) -> str:
        """Return at which address it is let in next."""
        async with asyncio.timeout(DEADLINE_S):
            await self._welcomed.get()
        return self.link.search.address


@asynccontextmanager
async def seeking(*coordinators: FakeCoordinator | str, **more: Any) -> AsyncIterator[Seeker]:
    """Run one that is told of these."""
    where = ",".join(each if isinstance(each, str) else each.address for each in coordinators)
    with a_lone_agent(coordinator=where, **{"insecure": True, **more}) as lone:
        async with lone:
            seeker = Seeker(lone)
            task = asyncio.create_task(seeker.run())
            try:
                yield seeker
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


@pytest.fixture
def nowhere() -> Iterator[str]:
    """An address at which nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


class Cluster(NamedTuple):
    """Two that follow, of which the one names the leader, and the leader."""

    unknowing: FakeCoordinator
    follower: FakeCoordinator
    leader: FakeCoordinator


@asynccontextmanager
async def a_cluster() -> AsyncIterator[Cluster]:
    async with fake_coordinator() as one, fake_coordinator() as other, fake_coordinator() as leader:
        one.answer, other.answer = not_leading(), not_leading(leader.address)
        leader.term = 7
        yield Cluster(one, other, leader)


async def test_a_follower_sends_it_to_the_leader_in_one_hop_even_one_it_was_not_told_of() -> None:
    async with a_cluster() as them, seeking(them.follower, them.unknowing) as seeker:
        assert await seeker.find_leader() == them.leader.address
        assert seeker.asked == [them.follower.address, them.leader.address]
        # Whose session breaks, for whatever reason, comes back to the leader.
        (await them.leader.session()).cut()
        assert await seeker.find_leader() == them.leader.address
        assert them.leader.lost_terms == [0, 0], "where it broke it may be back at once"
        assert len(them.follower.lost_terms) == 1


async def test_it_goes_past_those_that_are_dead_or_know_nothing(nowhere: str) -> None:
    async with a_cluster() as them, seeking(nowhere, them.unknowing, them.leader) as seeker:
        assert await seeker.find_leader() == them.leader.address
        assert len(seeker.asked) == 3


async def test_it_waits_at_a_follower_for_the_next_leader() -> None:
    """One that died: the follower is told which term is lost, and holds the call until it knows."""
    async with a_cluster() as them, fake_coordinator() as successor:
        successor.term = 8
        async with seeking(them.leader, them.follower) as seeker:
            assert await seeker.find_leader() == them.leader.address
            opened = await them.leader.session()
            them.leader.answer = not_leading()
            opened.cut()
            async with asyncio.timeout(DEADLINE_S):
                await them.follower.is_asked.wait()
                # At first the one that is lost might have been back at once.
                them.follower.is_free.clear()
                them.follower.is_asked.clear()
                await them.follower.is_asked.wait()
            them.follower.answer = not_leading(successor.address)
            them.follower.is_free.set()
            assert await seeker.find_leader() == successor.address
    assert them.follower.lost_terms == [0, 7]
    assert successor.lost_terms == [0], "it was sent there, and has not lost that one"
    assert seeker.link.term == 8


async def test_a_handover_takes_it_to_the_next_leader_at_once() -> None:
    async with a_cluster() as them, fake_coordinator() as successor:
        successor.term = 8
        async with seeking(them.leader, them.follower) as seeker:
            await seeker.find_leader()
            (await them.leader.session()).refuse(not_leading(successor.address))
            assert await seeker.find_leader() == successor.address
        assert seeker.asked == [them.leader.address, successor.address]


async def test_those_that_name_each_other_or_a_dead_one_make_no_storm(nowhere: str) -> None:
    async with fake_coordinator() as one, fake_coordinator() as other:
        one.answer, other.answer = not_leading(other.address), not_leading(one.address)
        async with fake_coordinator() as third, seeking(one, other, third) as seeker:
            third.answer, third.term = not_leading(nowhere), 3
            await wait_until(lambda: seeker.waits >= 2, DEADLINE_S)
            assert nowhere in seeker.asked
            # Between two waits each once, and three redirects.
            assert len(seeker.asked) <= (seeker.waits + 1) * (3 + 3)
            third.answer = None
            assert await seeker.find_leader() == third.address


async def test_a_leader_of_an_older_term_is_left() -> None:
    async with a_cluster() as them, fake_coordinator() as old:
        old.term = 6
        async with seeking(them.leader, old) as seeker:
            await seeker.find_leader()
            them.leader.answer = not_leading(old.address)
            (await them.leader.session()).cut()
            async with asyncio.timeout(DEADLINE_S):
                await old.is_asked.wait()
            them.leader.answer = None
            assert await seeker.find_leader() == them.leader.address


async def test_a_record_that_was_not_acknowledged_is_delivered_to_the_next_leader() -> None:
    async with a_cluster() as them, fake_coordinator() as successor:
        successor.term = 8
        async with seeking(them.leader) as seeker:
            await seeker.find_leader()
            fence = common_pb2.Fence(run_id="r", incarnation="i")
            for sequence in (1, 2):
                record = failure_pb2.FailureRecord(fence=fence, sequence=sequence)
                if sequence == 2:  # it stops taking them before this one
                    them.leader.is_deaf = True
                seeker.lone.spool.write(Spooled(time.monotonic(), record, KEY))
                if sequence == 1:
                    assert (await them.leader.record()).sequence == 1
            (await them.leader.session()).refuse(not_leading(successor.address))
            brought = await successor.record()
            if brought.sequence == 1:  # it had not heard yet that this one was taken
                brought = await successor.record()
            assert brought.sequence == 2
            assert successor.records.empty()


async def test_one_that_does_not_know_its_token_is_not_the_last_word() -> None:
    """Those that follow hear of tokens later; only if all say so the agent ends."""
    async with a_cluster() as them, seeking(them.unknowing, them.leader) as seeker:
        them.unknowing.answer = UNAUTHENTICATED
        assert await seeker.find_leader() == them.leader.address
    async with a_cluster() as them, seeking(them.unknowing, them.follower) as seeker:
        them.unknowing.answer = them.follower.answer = UNAUTHENTICATED
        async with asyncio.timeout(DEADLINE_S):
            await seeker.refused.wait()
        assert seeker.asked == [them.unknowing.address, them.follower.address]


async def test_it_is_held_no_longer_than_a_hello_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "WELCOME_TIMEOUT_S", 200 * MS)
    async with a_cluster() as them, seeking(them.follower, them.leader) as seeker:
        them.follower.is_free.clear()
        assert await seeker.find_leader() == them.leader.address
        them.follower.is_free.set()


async def test_a_leader_that_falls_silent_is_left_for_the_next_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pings = ("keepalive_time", "keepalive_timeout", "http2.ping_timeout")
    short = [(f"grpc.{each}_ms", round(1e3 * 200 * MS)) for each in pings]
    monkeypatch.setattr(grpc_transport, "_OF_SEVERAL", short)
    async with a_cluster() as them, fake_coordinator() as successor:
        successor.term = 8
        with Proxy(them.leader.address) as proxy:
            async with seeking(proxy.address, successor) as seeker:
                await seeker.find_leader()
                proxy.stall(up=True, down=True)
                assert await seeker.find_leader() == successor.address
                assert seeker.asked == [proxy.address, successor.address]
                assert successor.lost_terms == [7]
                assert seeker.waits == 0


async def test_one_that_hangs_is_left_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host takes connections, and nothing more; or it does not even that."""
    short = [("grpc.min_reconnect_backoff_ms", round(1e3 * 200 * MS))]
    monkeypatch.setattr(grpc_transport, "_OF_SEVERAL", short)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"127.0.0.1:{silent.getsockname()[1]}"
        async with a_cluster() as them, seeking(where, them.leader) as seeker:
            assert await seeker.find_leader() == them.leader.address
            assert seeker.asked == [where, them.leader.address]
