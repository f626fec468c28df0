"""What do the heartbeats of a fleet cost the coordinator, and which lease does it get?

Real streams, a real coordinator in a process of its own, a journal on disk. The fleet lives in
this process, so that its own work is not counted.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial

from bench.fake_agents import Fleet
from bench.harness import LOOPBACK, Question, Scene, main

SIZES = (1_000, 5_000)
WORKERS = 8
SETTLE_S = 3.0
MEASURED_S = 10.0


async def measure(scene: Scene, size: int, workers: int) -> dict[str, float]:
    """Return figures of a fleet whose every agent runs and does nothing but beat."""
    process, port = scene.start_coordinator()
    async with Fleet(f"{LOOPBACK}:{port}", size, workers=workers) as fleet:
        await fleet.time_to_assign()
        await asyncio.sleep(SETTLE_S)
        loop = asyncio.get_running_loop()
        began, before, beats = loop.time(), process.cpu_times(), fleet.beats
        await asyncio.sleep(MEASURED_S)
        after, beats = process.cpu_times(), fleet.beats - beats
        took = loop.time() - began
        cpu_s = after.user - before.user + after.system - before.system
        return {
            "cpu_ms_per_1000": cpu_s * 1e6 / beats,
            "cores": cpu_s / took,
            "lease_s": fleet.lease_s,
        }


def figure(name: str, size: int, workers: int) -> float:
    """Return one figure of a fleet."""
    with Scene() as scene:
        figures = asyncio.run(measure(scene, size, workers))
        print(f"{size:,} agents, {workers} workers each: {figures}", file=sys.stderr)
        return figures[name]


QUESTIONS = tuple(
    Question(
        name=f"beats_{name}_{size}_{workers}",
        text=f"{text}, {size:,} agents with {workers} workers that report progress",
        unit=unit,
        repeats=1,
        ours=partial(figure, name, size, workers),
    )
    for size in SIZES
    for workers in (0, WORKERS)
    for name, unit, text in (
        ("cpu_ms_per_1000", "ms", "coordinator's CPU for 1,000 beats"),
        ("cores", "cores", "coordinator's CPU for all beats"),
        ("lease_s", "s", "lease"),
    )
)

if __name__ == "__main__":
    sys.exit(main(QUESTIONS))
