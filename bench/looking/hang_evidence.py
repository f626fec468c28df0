"""How long does the coordinator take to judge a hang, and what does it hold up?

One worker exceeds a limit and is held. All agents are asked what their workers do; they have no
processes, and answer at once. The time is from the beat of the agent until it may kill the worker.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

from bench.figures import one_of_each
from bench.harness import LOOPBACK, Question, Scene
from bench.looking.commands import SLOW_PACE, probed
from bench.scale import fake_agents
from bench.scale.fake_agents import Fleet
from bench.ways import Way

WORKERS = 8
RANKS = (10_000, 80_000)
JUDGED_WITHIN_S = 60.0


async def measure(scene: Scene, ranks: int) -> dict[str, float | None]:
    """Return the seconds until it is judged, the longest stop and the memory meanwhile."""
    coordinator, port = probed(scene, *SLOW_PACE)
    address, credentials = f"{LOOPBACK}:{port}", scene.credentials(port)
    hosts = ranks // WORKERS
    async with Fleet(address, hosts, workers=WORKERS, credentials=credentials) as fleet:
        await fleet.time_to_assign()
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


def figures(ranks: int, way: str) -> dict[str, float | None]:
    """Return all figures of one fleet."""
    with Scene(Way(way)) as scene:
        return fake_agents.run(measure(scene, ranks))


def questions(ranks: int) -> list[Question]:
    """Return what is asked of a fleet."""
    runs = one_of_each(partial(figures, ranks))
    return [
        Question(
            name=f"hang_evidence_{ranks}_{name}",
            text=f"{text}, {ranks:,} ranks of {ranks // WORKERS:,} agents",
            unit=unit,
            repeats=3,
            **runs.in_each_way(name),
        )
        for name, unit, text in (
            ("time", "s", "from an expired limit to the judgement of the hang"),
            ("stop", "ms", "longest stop of the coordinator's event loop during it"),
            ("memory", "MB", "more memory of the coordinator"),
        )
    ]


QUESTIONS = tuple(question for ranks in RANKS for question in questions(ranks))
