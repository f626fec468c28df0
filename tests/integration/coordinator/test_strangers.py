"""Those who reach the port and are not known: a run goes on, and new agents get in."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from bench.strangers.attacks import ATTACKS
from tests.support.siege import Siege
from tests.support.waiting import MS
from tests.support.wire import Client

if TYPE_CHECKING:
    from collections.abc import Iterator

CONNECTIONS = int(os.environ.get("DRUMBEAT_STRANGERS", "200"))
LASTING_S = 1_000 * MS
# What one connection may leave in gRPC's core and in OpenSSL's place there, and what all may.
LEFT_KB, LEFT_MB = 60, 30


@pytest.fixture(scope="module")
def siege() -> Iterator[Siege]:
    with Siege() as made:
        yield made


@pytest.mark.parametrize("name", ATTACKS)
async def test_a_stranger_disturbs_no_run_and_leaves_nothing(name: str, siege: Siege) -> None:
    siege.witnessed()
    before = siege.holdings()
    attack = asyncio.create_task(ATTACKS[name](siege.door, CONNECTIONS, LASTING_S))
    await asyncio.sleep(LASTING_S / 3)
    async with Client(siege.door.port) as client:
        await client.agent(run_id=f"new-{name}").join()
    await attack
    await asyncio.to_thread(siege.wait_for_descriptors, before.descriptors + 2)
    await asyncio.to_thread(siege.check_run)
    siege.check_log()
    # The first attacks leave what the later ones use again.
    bound = siege.at_first.memory_mb + LEFT_MB + CONNECTIONS * LEFT_KB / 1000
    assert siege.holdings().memory_mb < bound
