"""Hosts that are dead, and agents that are stuck: who finds which."""

import asyncio
from pathlib import Path
from typing import Any

from tests.support.proxy import Proxy
from tests.support.status import RunStatus, kind
from tests.support.waiting import MS
from tests.support.wire import Client, FakeAgent, coordinator, spec

DEADLINE_S = 30_000 * MS
LEASE: dict[str, Any] = {"heartbeat_interval": 200 * MS, "lease": 2_000 * MS}


async def settled(client: Client) -> RunStatus:
    """Return the run once it has nobody left."""
    async with asyncio.timeout(DEADLINE_S):
        while (run := await client.run()).agents:  # noqa: ASYNC110 - it is asked over the network
            await asyncio.sleep(20 * MS)
    return run


def end_of(run: RunStatus) -> str:
    reason: str
    (reason,) = (entry.reason for entry in run.history if kind(entry) == "agent removed")
    return reason


async def joined(client: Client) -> FakeAgent:
    return await client.agent(spec=spec(2, 2)).join()


async def test_a_dead_host_is_found_by_the_transport_within_the_lease(tmp_path: Path) -> None:
    async with coordinator(tmp_path, **LEASE) as head:
        with Proxy(f"127.0.0.1:{head.port}") as proxy:
            async with Client(int(proxy.address.rpartition(":")[2])) as client:
                agent = await joined(client)
                proxy.stall(up=True, down=True)  # nothing is said any more, nor is it closed
                run = await settled(head)
                assert "its connection broke" in end_of(run)
                agent.call.cancel()
                proxy.restore()


async def test_an_agent_that_is_stuck_is_found_by_its_lease(tmp_path: Path) -> None:
    """Its transport answers, because threads of gRPC's own do."""
    async with coordinator(tmp_path, **LEASE) as head, Client(head.port) as client:
        agent = await joined(client)
        run = await settled(head)
        assert "nothing was heard of it for" in end_of(run)
        agent.call.cancel()
