"""Those who reach the port and are not known: a run goes on, and new agents get in."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress

import grpc
import pytest

from bench.strangers.attacks import ATTACKS
from drumbeat.tasks import is_asked_to_end
from tests.support.channels import aio_channel_to
from tests.support.siege import Siege
from tests.support.waiting import MS
from tests.support.wire import DEADLINE_S, Client

CONNECTIONS = int(os.environ.get("DRUMBEAT_STRANGERS", "100"))
# Each of these connections makes 200 calls at once: with more of them, beats are seconds late.
CALLING_MAX = 3_000
LASTING_S = 700 * MS
# What a connection of the worst kind, whose headers do not end, makes gRPC's core take; it is
# used again by the next. Of one that only says nothing it is 50 KB.
TAKEN_MB = 1.5


@pytest.fixture(scope="module")
def siege() -> Iterator[Siege]:
    with Siege() as made:
        yield made


async def join(siege: Siege, run_id: str) -> None:
    """Get a new agent in. It tries again, as agents do, where the coordinator is overrun."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with suppress(grpc.aio.AioRpcError):
                try:
                    async with Client(siege.door.port, aio_channel_to(siege.address)) as client:
                        await client.agent(run_id=run_id).join()
                except asyncio.CancelledError:  # so grpc.aio says that the server cancelled it
                    if is_asked_to_end():
                        raise
                else:
                    return


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", ATTACKS)
async def test_a_stranger_disturbs_no_run_and_leaves_nothing(name: str, siege: Siege) -> None:
    siege.witnessed()
    before = siege.holdings()
    count = min(CONNECTIONS, CALLING_MAX) if name == "calls_without_message" else CONNECTIONS
    attack = asyncio.create_task(ATTACKS[name](siege.door, count, LASTING_S))
    await asyncio.sleep(LASTING_S / 3)
    await join(siege, f"new-{name}")
    await attack
    await asyncio.to_thread(siege.wait_for_descriptors, before.descriptors + 2)
    await asyncio.to_thread(siege.check_run)
    siege.check_log()
    assert siege.holdings().memory_mb < siege.at_first.memory_mb + CONNECTIONS * TAKEN_MB
