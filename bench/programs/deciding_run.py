"""A small run that fails over and over: ``python -m bench.programs.deciding_run PORT NUMBER``.

Prints in JSON how many seconds each decision took, from the report of a failure until both agents
are assigned anew. It lives in a process of its own, so that the work of others is not in the way.
"""

from __future__ import annotations

import asyncio
import json
import sys

from bench.scale import fake_agents
from bench.scale.fake_agents import Fleet
from bench.ways import Access
from drumbeat.access.client import credentials

PAUSE_S = 0.05


async def decide(port: int, number: int) -> list[float]:
    """Return how long each of so many decisions took."""
    address = f"127.0.0.1:{port}"
    used = credentials(Access(), address)
    async with Fleet(address, 2, "deciding", credentials=used) as fleet:
        await fleet.time_to_assign()
        took = []
        for _ in range(number):
            took.append(await fleet.time_to_restart())
            await asyncio.sleep(PAUSE_S)
        return took


if __name__ == "__main__":
    print(json.dumps(fake_agents.run(decide(*map(int, sys.argv[1:])))))
