"""What does `coordinator watch RUN` cost in steady state, at 10,000 agents?

Windows with and without it take turns, so that a change of load meets both. The coordinator's
share is the difference of its CPU time between the two, and by itself what it took of its core.
"""

from __future__ import annotations

import asyncio
import statistics

import psutil

from bench.cpu import shares
from bench.figures import OneOfEach, assigned_fleet, in_scenes
from bench.harness import LOOPBACK, Scene
from bench.looking.commands import RUN, SLOW_PACE, started

SIZE, WORKERS = 10_000, 8
SETTLE_S = 5.0
WINDOW_S = 20.0
WINDOWS = 4


async def measure(scene: Scene) -> OneOfEach:
    """Return percents of a core."""
    process, port = scene.start_coordinator(0, *SLOW_PACE)
    without, differences, clients = [], [], []
    async with assigned_fleet(scene, port, SIZE, WORKERS):
        await asyncio.sleep(SETTLE_S)
        for _ in range(WINDOWS):
            [alone] = await shares(WINDOW_S, process)
            way = ("--coordinator", f"{LOOPBACK}:{port}", *scene.way.options)
            watch = await started(scene, "coordinator", "watch", RUN, *way)
            assert watch.stdout is not None, "it is a pipe"
            await watch.stdout.readline()  # the first look, with all that is loaded for it
            reading = asyncio.create_task(watch.stdout.read())
            watched, client = await shares(WINDOW_S, process, psutil.Process(watch.pid))
            watch.terminate()
            await asyncio.gather(reading, watch.wait())
            without.append(alone)
            differences.append(watched - alone)
            clients.append(client)
    return {
        "none": statistics.median(without),
        "coordinator": statistics.median(differences),
        "client": statistics.median(clients),
    }


OF = f"{SIZE:,} agents with {WORKERS} workers each"
QUESTIONS = in_scenes(measure).questions(
    "watch_cost",
    (
        ("none", "% of a core", f"the coordinator, not watched, {OF}"),
        ("coordinator", "% of a core", f"the coordinator, more with one `watch`, {OF}"),
        ("client", "% of a core", f"the command `watch` itself, {OF}"),
    ),
)
