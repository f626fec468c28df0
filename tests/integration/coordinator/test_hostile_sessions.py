"""What sessions of one token can make a coordinator hold, measured as memory of its process."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import grpc
import psutil
import pytest

from drumbeat.coordinator.core.tokens.caller import incarnation_of
from drumbeat.v1 import session_pb2
from tests.integration.coordinator.test_sessions import hostile
from tests.support.channels import aio_channel_to
from tests.support.cluster import Cluster
from tests.support.wire import DEADLINE_S, Client

SESSIONS, MEMORY_MAX = 1_000, 60_000_000
CALLS_PER_CONNECTION = 100
AT_ONCE = 50


def with_many_workers(report: session_pb2.AgentReport) -> None:
    """Have workers say all that they can, in place of long texts, which leaves room for more."""
    report.hello.ClearField("features")
    report.hello.ClearField("labels")
    report.hello.local_world_size = 100
    beat = report.hello.beat
    del beat.workers[:]
    for rank in range(report.hello.local_world_size):
        worker = beat.workers.add(local_rank=rank, step=2**40 + rank, scopes_open=2**30 + rank)
        worker.scope = chr(0x1F600) * 28 + f"{rank:04}"
        for age in (worker.step_time, worker.heartbeat_age, worker.progress_age):
            age.seconds = 1_000 + rank
        worker.runtime_age.seconds = worker.scope_age.seconds = 2_000 + rank
        worker.steps_timed, worker.steps_seconds = 2**30 + rank, 3.5 + rank


def with_long_texts(_: session_pb2.AgentReport) -> None:
    """Leave a report as it is."""


async def hold(
    client: Client, number: int, change: Callable[[session_pb2.AgentReport], None]
) -> Any:
    """Open a session that says as much as a message holds; return its call, or None if refused."""
    key = number.to_bytes(32)
    report = await anext(hostile(incarnation_of(key), 8))
    report.fence.run_id = report.hello.run.run_id = f"r{number % 100}"
    report.hello.incarnation_key = key
    change(report)
    call: Any = client.sessions.OpenSession()
    try:
        await call.write(report)
        while (await call.read()).WhichOneof("kind") != "welcome":
            pass
        beat = session_pb2.AgentReport(fence=report.fence, beat=report.hello.beat)
        await call.write(beat)
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return None
    return call


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", [with_long_texts, pytest.param(with_many_workers, marks=pytest.mark.soak)]
)
@pytest.mark.timeout(300)
async def test_a_thousand_hostile_sessions_of_one_token_cost_a_coordinator_little_memory(
    change: Callable[[session_pb2.AgentReport], None],
) -> None:
    with Cluster() as cluster:
        coordinator = cluster.coordinator()
        process = psutil.Process(coordinator.pid)
        async with AsyncExitStack() as stack:
            token = coordinator.create_token()
            clients = [
                await stack.enter_async_context(
                    Client(coordinator.port, aio_channel_to(coordinator.address, token.text()))
                )
                for _ in range(SESSIONS // CALLS_PER_CONNECTION + 1)
            ]
            before = process.memory_info().rss
            async with asyncio.timeout(20 * DEADLINE_S):
                calls = [
                    call
                    for first in range(0, SESSIONS, AT_ONCE)
                    for call in await asyncio.gather(
                        *(
                            hold(clients[n // CALLS_PER_CONNECTION], n, change)
                            for n in range(first, first + AT_ONCE)
                        )
                    )
                ]
            await clients[-1].is_serving()
            cost = process.memory_info().rss - before
            assert None not in calls
            for call in calls:
                call.cancel()
        assert cost < MEMORY_MAX
