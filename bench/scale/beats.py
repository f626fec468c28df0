"""What do the heartbeats of a fleet cost the coordinator, and which lease does it get?

Real streams, a real coordinator in a process of its own, a journal on disk. The fleet lives in
this process, so that its own work is not counted. Agents of one run of this size and of twice
as many have the same pace, so from the cost of a beat follows what 10,000 of them need.
"""

from __future__ import annotations

import asyncio
from functools import partial

from bench.figures import one_of_each
from bench.harness import LOOPBACK, Question, Scene
from bench.scale import fake_agents
from bench.scale.fake_agents import Fleet
from bench.ways import Way

SIZE = 5_000
SIZE_WANTED = 10_000
WORKERS = 8
SETTLE_S = 3.0
MEASURED_S = 10.0


async def measure(scene: Scene, size: int, workers: int) -> dict[str, float | None]:
    """Return figures of a fleet whose every agent runs and does nothing but beat."""
    process, port = scene.start_coordinator()
    address, credentials = f"{LOOPBACK}:{port}", scene.credentials(port)
    async with Fleet(address, size, workers=workers, credentials=credentials) as fleet:
        await fleet.time_to_assign()
        await asyncio.sleep(SETTLE_S)
        before, beats = process.cpu_times(), fleet.beats
        await asyncio.sleep(MEASURED_S)
        after, beats = process.cpu_times(), fleet.beats - beats
        beat_s = (after.user - before.user + after.system - before.system) / beats
        return {
            "cpu_ms_per_1000": beat_s * 1e6,
            "cores": beat_s * SIZE_WANTED / fleet.interval_s,
            "lease_s": fleet.lease_s,
        }


def figures(workers: int, way: str) -> dict[str, float | None]:
    """Return all figures of one fleet."""
    with Scene(Way(way)) as scene:
        return fake_agents.run(measure(scene, SIZE, workers))


def questions(workers: int) -> list[Question]:
    """Return what is asked of a fleet."""
    runs = one_of_each(partial(figures, workers))
    return [
        Question(
            name=f"beats_{name}_{workers}",
            text=f"{text}, {workers} workers each that report progress",
            unit=unit,
            repeats=3,
            **runs.in_each_way(name),
        )
        for name, unit, text in (
            ("cpu_ms_per_1000", "ms", f"coordinator's CPU for 1,000 beats of {SIZE:,} agents"),
            ("cores", "cores", f"the same for all beats of {SIZE_WANTED:,} agents"),
            ("lease_s", "s", f"lease of {SIZE:,} agents"),
        )
    ]


QUESTIONS = (*questions(0), *questions(WORKERS))
