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

from bench.figures import OneOfEach, assigned_fleet, in_scenes
from bench.harness import Question, Scene
from bench.looking.commands import RUN, SLOW_PACE, probed, time_of

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


async def measure(scene: Scene, workers: int) -> OneOfEach:
    """Return the seconds of each verb, and the longest stop during it and without any."""
    coordinator, port = probed(scene, *SLOW_PACE)
    found: OneOfEach = {}
    async with assigned_fleet(scene, port, SIZE, workers):
        await asyncio.sleep(SETTLE_S)
        await coordinator.longest_stop_ms()
        await asyncio.sleep(MEASURED_S)
        found["stop_none"] = await coordinator.longest_stop_ms()
        for name, verb in VERBS.items():
            looks = [await time_of(scene, port, *verb) for _ in range(LOOKS)]
            found[name] = statistics.median(looks)
            found[f"stop_{name}"] = await coordinator.longest_stop_ms()
    return found


def questions(workers: int) -> list[Question]:
    """Return what is asked of a fleet."""
    of = f"{SIZE:,} agents, {workers} workers each"
    stop = f"longest stop of the coordinator's event loop, {of}"
    commands = {name: f"`coordinator {' '.join(verb)}`" for name, verb in VERBS.items()}
    rows = [(name, "s", f"{command}, {of}") for name, command in commands.items()]
    rows.append(("stop_none", "ms", f"{stop}, nothing is asked"))
    rows += [(f"stop_{name}", "ms", f"{stop}, during {what}") for name, what in commands.items()]
    runs = in_scenes(partial(measure, workers=workers))
    return runs.questions(f"status_{SIZE}_{workers}", rows)


QUESTIONS = (*questions(1), *questions(8))
