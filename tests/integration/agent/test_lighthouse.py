"""What workers ask torchft's lighthouse goes to the coordinator; other processes are refused."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import pytest

from drumbeat.agent.lighthouse import endpoint, relay
from drumbeat.agent.lighthouse.endpoint import LighthouseEndpoint
from drumbeat.agent.lighthouse.peers import is_of_descendant
from drumbeat.agent.lighthouse.relay import QuorumRelay, RequestDropped
from drumbeat.agent.session.convert import Identity
from drumbeat.agent.session.transport import TransportError
from drumbeat.torchft import lighthouse_pb2, lighthouse_pb2_grpc
from drumbeat.v1 import session_pb2
from drumbeat.wire.messages import MEMBER_BYTES_MAX
from tests.support.waiting import MS

DEADLINE_S = 20_000 * MS
MEMBER = lighthouse_pb2.QuorumMember(replica_id="a", step=7)

# Its poller is one for all loops of this process; made here, it is no leak of a test.
grpc.aio.init_grpc_aio()


class Coordinator:
    """A connection that keeps what the relay says, and answers when it is told to."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[session_pb2.JoinQuorumRequest | None] = asyncio.Queue()
        self.take: Any = None
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def join_quorum(self, requests: Any, take: Any) -> None:
        self.take, self.broken = take, asyncio.get_running_loop().create_future()

        async def read() -> None:
            async for message in requests:
                self.said.put_nowait(message)
            self.said.put_nowait(None)

        reading = asyncio.ensure_future(read())
        try:
            await asyncio.wait({reading, self.broken}, return_when=asyncio.FIRST_COMPLETED)
            if self.broken.done():
                self.broken.result()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await requests.aclose()

    async def heard(self) -> session_pb2.JoinQuorumRequest | None:
        async with asyncio.timeout(DEADLINE_S):
            return await self.said.get()

    def answer(self, number: int) -> session_pb2.JoinQuorumResponse:
        answer = session_pb2.JoinQuorumResponse(number=number, response=b"q", numbers=[number])
        self.take(answer)
        return answer


@asynccontextmanager
async def relaying() -> AsyncIterator[tuple[QuorumRelay, Coordinator]]:
    carried = QuorumRelay("ft.0", Identity(incarnation="i", incarnation_key=b"k", host="h"))
    carried.begin_round(3)
    coordinator = Coordinator()
    task = asyncio.create_task(carried.run(cast("Any", coordinator)))
    try:
        yield carried, coordinator
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        carried.close()


async def test_a_heartbeat_is_told_once() -> None:
    async with relaying() as (carried, coordinator):
        carried.heard("a")
        first = await coordinator.heard()
        assert first is not None
        assert (first.fence.run_id, first.fence.round_id) == ("ft.0", 3)
        assert (first.incarnation_key, first.replica_id, first.number) == (b"k", "a", 0)
        for _ in range(10):
            carried.heard("a")
        asking = asyncio.ensure_future(carried.ask(MEMBER))
        second = await coordinator.heard()
        assert second == session_pb2.JoinQuorumRequest(replica_id="a", number=1, member=MEMBER)
        coordinator.answer(1)
        assert await asking == b"q"
        assert coordinator.said.empty()


async def test_a_request_is_told_again_after_a_break_with_the_latest_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay, "RETRY_S", 10 * MS)
    async with relaying() as (carried, coordinator):
        asking = asyncio.ensure_future(carried.ask(MEMBER))
        await coordinator.heard()
        latest = coordinator.answer(1)
        await asking
        asking = asyncio.ensure_future(carried.ask(MEMBER))
        await coordinator.heard()
        coordinator.broken.set_exception(TransportError("the coordinator is gone"))
        again = await coordinator.heard()
        assert again is not None
        assert (again.number, again.latest, again.fence.round_id) == (2, latest, 3)
        coordinator.answer(1)  # late: it is not the one that is waited for
        coordinator.answer(2)
        assert await asking == b"q"


async def test_a_caller_that_goes_takes_its_request_back() -> None:
    async with relaying() as (carried, coordinator):
        asking = asyncio.ensure_future(carried.ask(MEMBER))
        assert await coordinator.heard()
        asking.cancel()
        assert await coordinator.heard() == session_pb2.JoinQuorumRequest(replica_id="a")


async def test_a_later_request_and_a_later_round_drop_an_earlier_one() -> None:
    async with relaying() as (carried, coordinator):
        first = asyncio.ensure_future(carried.ask(MEMBER))
        await coordinator.heard()
        second = asyncio.ensure_future(carried.ask(MEMBER))
        with pytest.raises(RequestDropped, match="the replica asked again"):
            await first
        await coordinator.heard()
        carried.begin_round(4)
        with pytest.raises(RequestDropped, match="its round is over"):
            await second
        assert await coordinator.heard() is None
        carried.heard("b")
        begun = await coordinator.heard()
        assert begun is not None
        assert (begun.fence.round_id, begun.replica_id) == (4, "b")


async def test_silence_is_told_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "HEARTBEAT_TIMEOUT_S", 50 * MS)
    async with relaying() as (carried, coordinator):
        carried.heard("a")
        assert await coordinator.heard()
        silent = session_pb2.JoinQuorumRequest(replica_id="a", is_silent=True)
        assert await coordinator.heard() == silent
        carried.heard("a")
        assert await coordinator.heard() == session_pb2.JoinQuorumRequest(replica_id="a")


async def test_another_replica_counts_once_it_asks() -> None:
    async with relaying() as (carried, coordinator):
        carried.heard("old")
        await coordinator.heard()
        carried.heard("a")
        asking = asyncio.ensure_future(carried.ask(MEMBER))
        told = await coordinator.heard()
        assert told is not None
        assert told.replica_id == "a"
        coordinator.answer(1)
        await asking


async def test_a_round_that_the_coordinator_does_not_know_is_not_told_again() -> None:
    async with relaying() as (carried, coordinator):
        carried.heard("a")
        await coordinator.heard()
        coordinator.broken.set_exception(TransportError("it is over", "STALE_SESSION"))
        await asyncio.sleep(0)
        carried.heard("a")
        carried.begin_round(4)
        carried.heard("a")
        told = await coordinator.heard()
        assert told is not None
        assert told.fence.round_id == 4


ASK = """
import sys, grpc
from drumbeat.torchft import lighthouse_pb2, lighthouse_pb2_grpc
with grpc.insecure_channel(sys.argv[1].removeprefix("http://")) as channel:
    stub = lighthouse_pb2_grpc.LighthouseServiceStub(channel)
    request = lighthouse_pb2.LighthouseHeartbeatRequest(replica_id=sys.argv[2])
    try:
        stub.Heartbeat(request, timeout=20)
        print("OK")
    except grpc.RpcError as error:
        print(error.code().name, error.details())
"""


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[str, LighthouseEndpoint]]:
    lighthouse = LighthouseEndpoint(QuorumRelay("ft.0", Identity(incarnation="i", host="h")))
    url = await lighthouse.start()
    lighthouse.begin_round(0)
    try:
        yield url, lighthouse
    finally:
        await lighthouse.close()


async def ask_as_child(url: str, replica_id: str, *before: str) -> str:
    child = await asyncio.create_subprocess_exec(
        *(*before, sys.executable, "-c", ASK, url, replica_id), stdout=subprocess.PIPE
    )
    return (await child.communicate())[0].decode().strip()


async def test_processes_below_the_agent_are_served_and_no_others() -> None:
    async with serving() as (url, _):
        assert await ask_as_child(url, "a") == "OK"
        assert await ask_as_child(url, "a", "setsid", "--fork", "--wait") == "OK"
        answer = "PERMISSION_DENIED this lighthouse serves the workers of its agent alone"
        async with grpc.aio.insecure_channel(url.removeprefix("http://")) as channel:
            stub: Any = lighthouse_pb2_grpc.LighthouseServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as refused:  # this process is not below itself
                await stub.Quorum(lighthouse_pb2.LighthouseQuorumRequest(requester=MEMBER))
            assert f"{refused.value.code().name} {refused.value.details()}" == answer


@pytest.mark.parametrize(
    ("member", "text"),
    [
        (lighthouse_pb2.QuorumMember(), "requester.replica_id: '' is given, allowed is 1 to 256"),
        (
            lighthouse_pb2.QuorumMember(replica_id="a", data="x" * MEMBER_BYTES_MAX),
            "bytes' is given, allowed is at most 4096 bytes",
        ),
    ],
)
async def test_bad_input_gets_one_clear_error(
    member: lighthouse_pb2.QuorumMember, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "is_of_descendant", lambda *_: True)
    async with (
        serving() as (url, _),
        grpc.aio.insecure_channel(url.removeprefix("http://")) as channel,
    ):
        stub: Any = lighthouse_pb2_grpc.LighthouseServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Quorum(lighthouse_pb2.LighthouseQuorumRequest(requester=member))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert text in (refused.value.details() or "")


def test_a_port_without_a_connection_is_of_no_process() -> None:
    assert not is_of_descendant(1, os.getpid() % 60_000 + 1)
