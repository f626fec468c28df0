"""Hosts that are dead, and agents that are stuck: who finds which."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.proxy import Proxy
from tests.support.status import kind
from tests.support.waiting import MS
from tests.support.wire import Client, coordinator, spec

DEADLINE_S = 30_000 * MS
LEASE: dict[str, Any] = {"heartbeat_interval": 200 * MS, "lease": 2_000 * MS}


async def end_of(client: Client, run_id: str) -> str:
    """Return why the only agent of a run was removed, once it was."""
    async with asyncio.timeout(DEADLINE_S):
        while (run := await client.run(run_id)).agents:  # noqa: ASYNC110 - asked over the network
            await asyncio.sleep(20 * MS)
    reason: str
    (reason,) = (entry.reason for entry in run.history if kind(entry) == "agent removed")
    return reason


@pytest.mark.slow
async def test_the_transport_finds_a_dead_host_and_the_lease_an_agent_that_is_stuck(
    tmp_path: Path,
) -> None:
    """The transport of a stuck agent answers, because threads of gRPC's own do."""
    async with coordinator(tmp_path, **LEASE) as head:
        with Proxy(f"127.0.0.1:{head.port}") as proxy:
            async with Client(int(proxy.address.rpartition(":")[2])) as client:
                dead = await client.agent(run_id="dead", spec=spec(2, 2)).join()
                proxy.stall(up=True, down=True)  # nothing is said any more, nor is it closed
                stuck = await head.agent(run_id="stuck", spec=spec(2, 2)).join()
                ends = await asyncio.gather(end_of(head, "dead"), end_of(head, "stuck"))
                assert "its connection broke" in ends[0]
                assert "nothing was heard of it for" in ends[1]
                dead.call.cancel()
                stuck.call.cancel()
                proxy.restore()
