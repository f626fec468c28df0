"""Do 50 watchers slow a run down: its beats, and its restarts?

25 `watch` and 25 `events --follow`, in a process of their own. Windows with and without them take
turns, so that a change of load meets both. Ratios are those of neighbouring windows. What one
`stacks` takes, `bench.looking.stacks` tells.
"""

from __future__ import annotations

import asyncio
import statistics
from typing import TYPE_CHECKING

from bench.cpu import cpu_s
from bench.figures import OneOfEach, assigned_fleet, in_scenes
from bench.harness import LOOPBACK, Scene
from bench.looking.commands import RUN, looking

if TYPE_CHECKING:
    import psutil

    from bench.scale.fake_agents import Fleet

SIZE, WORKERS = 2_000, 8
WATCHERS = 50
SETTLE_S = 5.0
WINDOW_S = 10.0
WINDOWS = 5
RESTARTS = 3  # in a window


async def window(coordinator: psutil.Process, fleet: Fleet) -> tuple[float, float, float]:
    """Return the coordinator's CPU of 1,000 beats, that of a restart, and how long that takes."""
    await asyncio.sleep(SETTLE_S)
    cpu, beats = cpu_s(coordinator), fleet.beats
    await asyncio.sleep(WINDOW_S)
    beat_ms = (cpu_s(coordinator) - cpu) * 1e6 / (fleet.beats - beats)
    cpu, restarts = cpu_s(coordinator), []
    for _ in range(RESTARTS):
        restarts.append(await fleet.time_to_restart())
        await asyncio.sleep(1.0)
    return beat_ms, (cpu_s(coordinator) - cpu) * 1e3 / RESTARTS, statistics.median(restarts) * 1e3


async def measure(scene: Scene) -> OneOfEach:
    """Return medians of all windows, and of the ratios of neighbours."""
    process, port = scene.start_coordinator()
    readers = (f"{LOOPBACK}:{port}", RUN, str(WATCHERS), *scene.way.options)
    without, watched = [], []
    async with assigned_fleet(scene, port, SIZE, WORKERS) as fleet:
        for _ in range(WINDOWS):
            without.append(await window(process, fleet))
            async with looking(scene, "bench.programs.watchers", *readers):
                watched.append(await window(process, fleet))
    found: OneOfEach = {}
    for at, name in enumerate(("beats", "restart_cpu", "restart")):
        pairs = [(a[at], b[at]) for a, b in zip(without, watched, strict=True)]
        found[f"{name}_none"] = statistics.median(a for a, _ in pairs)
        found[f"{name}_watched"] = statistics.median(b for _, b in pairs)
        found[f"{name}_ratio"] = statistics.median(b / a for a, b in pairs)
    return found


WHAT = {
    "beats": "coordinator's CPU for 1,000 beats",
    "restart_cpu": "coordinator's CPU in the second of a restart",
    "restart": "restart, from a failure to the last assignment",
}
HOW = (
    ("none", "ms", "no watchers"),
    ("watched", "ms", f"{WATCHERS} watchers"),
    ("ratio", "x", f"{WATCHERS} watchers beside none"),
)
OF = f"{SIZE:,} agents with {WORKERS} workers each"
QUESTIONS = in_scenes(measure).questions(
    f"watchers_{WATCHERS}",
    (
        (f"{name}_{which}", unit, f"{what}, {OF}, {how}")
        for name, what in WHAT.items()
        for which, unit, how in HOW
    ),
)
