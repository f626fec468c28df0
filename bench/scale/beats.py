"""What do the heartbeats of a fleet cost the coordinator, and which lease does it get?

Real streams, a real coordinator in a process of its own, a journal on disk. The fleet lives in
this process, so that its own work is not counted. Agents of one run of this size and of twice
as many have the same pace, so from the cost of a beat follows what 10,000 of them need.
"""

from __future__ import annotations

import asyncio
from functools import partial

from bench.cpu import cpu_s
from bench.figures import OneOfEach, assigned_fleet, in_scenes
from bench.harness import Question, Scene

SIZE = 5_000
SIZE_WANTED = 10_000
WORKERS = 8
SETTLE_S = 3.0
MEASURED_S = 10.0


async def measure(scene: Scene, workers: int) -> OneOfEach:
    """Return figures of a fleet whose every agent runs and does nothing but beat."""
    process, port = scene.start_coordinator()
    async with assigned_fleet(scene, port, SIZE, workers) as fleet:
        await asyncio.sleep(SETTLE_S)
        before, beats = cpu_s(process), fleet.beats
        await asyncio.sleep(MEASURED_S)
        beat_s, told = (cpu_s(process) - before) / (fleet.beats - beats), await fleet.told()
        return {
            "cpu_ms_per_1000": beat_s * 1e6,
            "cores": beat_s * SIZE_WANTED / told.interval_s,
            "lease_s": told.lease_s,
        }


def questions(workers: int) -> list[Question]:
    """Return what is asked of a fleet."""
    of = f"{workers} workers each that report progress"
    rows = (
        ("cpu_ms_per_1000", "ms", f"coordinator's CPU for 1,000 beats of {SIZE:,} agents, {of}"),
        ("cores", "cores", f"the same for all beats of {SIZE_WANTED:,} agents, {of}"),
        ("lease_s", "s", f"lease of {SIZE:,} agents, {of}"),
    )
    runs = in_scenes(partial(measure, workers=workers))
    return runs.questions(f"beats_{workers}", rows, repeats=3)


QUESTIONS = (*questions(0), *questions(WORKERS))
