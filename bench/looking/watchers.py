"""Do 50 watchers slow a run down: its beats, and its restarts?

25 `watch` and 25 `events --follow`, in a process of their own. Windows with and without them take
turns, so that a change of load meets both. Ratios are those of neighbouring windows. What one
`stacks` takes, `bench.looking.stacks` tells.
"""

from __future__ import annotations

import asyncio
import statistics
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from bench.figures import one_of_each
from bench.harness import LOOPBACK, STEP_S, BenchmarkError, Question, Scene
from bench.looking.commands import RUN, cpu_s, started
from bench.scale import fake_agents
from bench.scale.fake_agents import Fleet
from bench.ways import Way

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import psutil

SIZE, WORKERS = 2_000, 8
WATCHERS = 50
SETTLE_S = 5.0
WINDOW_S = 10.0
WINDOWS = 5
RESTARTS = 3  # in a window


@asynccontextmanager
async def watchers(scene: Scene, address: str) -> AsyncIterator[None]:
    """Have all of them read while the context is open."""
    what = (address, RUN, str(WATCHERS), *scene.way.options)
    process = await started(scene, "bench.programs.watchers", *what)
    assert process.stdout is not None, "it is a pipe"
    try:
        async with asyncio.timeout(STEP_S):
            if await process.stdout.readline() != b"ready\n":
                assert process.stderr is not None, "it is a pipe"
                raise BenchmarkError((await process.stderr.read()).decode()[-500:])
        yield
        if process.returncode is not None:
            raise BenchmarkError("the watchers ended on the way")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


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


async def measure(scene: Scene) -> dict[str, float | None]:
    """Return medians of all windows, and of the ratios of neighbours."""
    process, port = scene.start_coordinator()
    credentials, address = scene.credentials(port), f"{LOOPBACK}:{port}"
    without, watched = [], []
    async with Fleet(address, SIZE, workers=WORKERS, credentials=credentials) as fleet:
        await fleet.time_to_assign()
        for _ in range(WINDOWS):
            without.append(await window(process, fleet))
            async with watchers(scene, address):
                watched.append(await window(process, fleet))
    found: dict[str, float | None] = {}
    for at, name in enumerate(("beats", "restart_cpu", "restart")):
        pairs = [(a[at], b[at]) for a, b in zip(without, watched, strict=True)]
        found[f"{name}_none"] = statistics.median(a for a, _ in pairs)
        found[f"{name}_watched"] = statistics.median(b for _, b in pairs)
        found[f"{name}_ratio"] = statistics.median(b / a for a, b in pairs)
    return found


def figures(way: str) -> dict[str, float | None]:
    """Return all figures of one fleet."""
    with Scene(Way(way)) as scene:
        return fake_agents.run(measure(scene))


RUNS = one_of_each(partial(figures))
WHAT = {
    "beats": "coordinator's CPU for 1,000 beats",
    "restart_cpu": "coordinator's CPU in the second of a restart",
    "restart": "restart, from a failure to the last assignment",
}
QUESTIONS = tuple(
    Question(
        name=f"watchers_{WATCHERS}_{name}_{which}",
        text=f"{what}, {SIZE:,} agents with {WORKERS} workers each, {how}",
        unit=unit,
        repeats=1,
        **RUNS.in_each_way(f"{name}_{which}"),
    )
    for name, what in WHAT.items()
    for which, unit, how in (
        ("none", "ms", "no watchers"),
        ("watched", "ms", f"{WATCHERS} watchers"),
        ("ratio", "x", f"{WATCHERS} watchers beside none"),
    )
)
