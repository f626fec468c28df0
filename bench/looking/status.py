"""How long does `coordinator status RUN` take at 10,000 agents, and what does it hold up?

Real streams, a real coordinator in a process of its own, a journal on disk. The command runs as a
user starts it: its imports, the connection with TLS and the table count. The fleet beats meanwhile
in this process, at a slow pace. What holds the coordinator up is the longest time for which its
event loop works on one thing: of that time nothing of the machine's load is part.
"""

from __future__ import annotations

import asyncio
import statistics
from functools import partial

from bench.figures import one_of_each
from bench.harness import LOOPBACK, Question, Scene
from bench.looking.commands import RUN, SLOW_PACE, probed, time_of
from bench.scale import fake_agents
from bench.scale.fake_agents import Fleet
from bench.ways import Way

SIZE = 10_000
SETTLE_S = 5.0
MEASURED_S = 10.0
LOOKS = 5
# What is asked for, by the name of its figures.
VERBS = {
    "text": ("status", RUN),
    "json": ("status", RUN, "-o", "json"),
    "runs": ("status",),
    "events": ("events", RUN),
    "why": ("why", RUN),
}


async def measure(scene: Scene, workers: int) -> dict[str, float | None]:
    """Return the seconds of each verb, and the longest stop during it and without any."""
    coordinator, port = probed(scene, *SLOW_PACE)
    credentials = scene.credentials(port)
    found: dict[str, float | None] = {}
    async with Fleet(f"{LOOPBACK}:{port}", SIZE, workers=workers, credentials=credentials) as fleet:
        await fleet.time_to_assign()
        await asyncio.sleep(SETTLE_S)
        await coordinator.longest_stop_ms()
        await asyncio.sleep(MEASURED_S)
        found["stop_none"] = await coordinator.longest_stop_ms()
        for name, verb in VERBS.items():
            looks = [await time_of(scene, port, *verb) for _ in range(LOOKS)]
            found[name] = statistics.median(looks)
            found[f"stop_{name}"] = await coordinator.longest_stop_ms()
    return found


def figures(workers: int, way: str) -> dict[str, float | None]:
    """Return all figures of one fleet."""
    with Scene(Way(way)) as scene:
        return fake_agents.run(measure(scene, workers))


def questions(workers: int) -> list[Question]:
    """Return what is asked of a fleet."""
    runs = one_of_each(partial(figures, workers))
    of = f"{SIZE:,} agents, {workers} workers each"
    times = [
        Question(
            name=f"status_{SIZE}_{workers}_{name}",
            text=f"`coordinator {' '.join(verb)}`, {of}",
            unit="s",
            repeats=1,
            **runs.in_each_way(name),
        )
        for name, verb in VERBS.items()
    ]
    stops = [
        Question(
            name=f"status_{SIZE}_{workers}_stop_{name}",
            text=f"longest stop of the coordinator's event loop, {of}, {during}",
            unit="ms",
            repeats=1,
            **runs.in_each_way(f"stop_{name}"),
        )
        for name, during in {
            "none": "nothing is asked",
            **{name: f"during `coordinator {' '.join(verb)}`" for name, verb in VERBS.items()},
        }.items()
    ]
    return times + stops


QUESTIONS = (*questions(1), *questions(8))
