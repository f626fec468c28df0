"""How long does the coordinator take to judge a hang, and what does it hold up?

One worker exceeds a limit and is held. All agents are asked what their workers do; they have no
processes, and answer at once. The time is from the beat of the agent until it may kill the worker.
"""

from __future__ import annotations

import asyncio
import time

from bench.figures import OneOfEach, assigned_fleet
from bench.harness import Scene
from bench.looking.commands import SLOW_PACE, probed
from bench.looking.fleets import WORKERS, questions

RANKS = (10_000, 80_000)
JUDGED_WITHIN_S = 60.0


async def measure(scene: Scene, ranks: int) -> OneOfEach:
    """Return the seconds until it is judged, the longest stop and the memory meanwhile."""
    coordinator, port = probed(scene, *SLOW_PACE)
    async with assigned_fleet(scene, port, ranks // WORKERS, WORKERS) as fleet:
        await coordinator.longest_stop_ms()
        before = coordinator.process.memory_info().rss
        began, released = time.monotonic(), fleet.hang()
        async with asyncio.timeout(JUDGED_WITHIN_S):
            judged = await released
        return {
            "time": judged - began,
            "stop": await coordinator.longest_stop_ms(),
            "memory": (coordinator.process.memory_info().rss - before) / 1e6,
        }


QUESTIONS = questions(
    "hang_evidence",
    measure,
    RANKS,
    (
        ("time", "s", "from an expired limit to the judgement of the hang"),
        ("stop", "ms", "longest stop of the coordinator's event loop during it"),
        ("memory", "MB", "more memory of the coordinator"),
    ),
)
