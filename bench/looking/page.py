"""What does the page of a run cost the coordinator when 20 browsers have it open?

1,000 agents beat in this process; the browsers are in one of their own, and ask and read what the
page does, but draw nothing. Windows with and without them take turns, so that a change of
load meets both.
"""

from __future__ import annotations

import asyncio
import statistics
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from bench.figures import one_of_each
from bench.harness import (
    ENVIRONMENT,
    LOOPBACK,
    STEP_S,
    BenchmarkError,
    Question,
    Scene,
    free_port,
)
from bench.looking.commands import RUN, cpu_s, started
from bench.scale import fake_agents
from bench.scale.fake_agents import Fleet
from bench.ways import Way

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import psutil

SIZE, WORKERS = 1_000, 8
BROWSERS = 20
SETTLE_S = 5.0
WINDOW_S = 20.0
WINDOWS = 3


@asynccontextmanager
async def browsers(scene: Scene, origin: str, count: int, run_id: str = RUN) -> AsyncIterator[None]:
    """Have so many look at a run, or without one at the list, while the context is open."""
    process = await started(scene, "bench.programs.browsers", origin, run_id, str(count))
    assert process.stdout is not None, "it is a pipe"
    try:
        async with asyncio.timeout(STEP_S):
            if await process.stdout.readline() != b"ready\n":
                assert process.stderr is not None, "it is a pipe"
                raise BenchmarkError((await process.stderr.read()).decode()[-1_500:])
        yield
        if process.returncode is not None:
            raise BenchmarkError("the browsers ended on the way")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def window(coordinator: psutil.Process) -> float:
    """Return how much of a core the coordinator takes, in percent."""
    await asyncio.sleep(SETTLE_S)
    clock = asyncio.get_running_loop().time
    cpu, began = cpu_s(coordinator), clock()
    await asyncio.sleep(WINDOW_S)
    return 100 * (cpu_s(coordinator) - cpu) / (clock() - began)


def served(scene: Scene, *options: str) -> tuple[psutil.Popen, int, str, str]:
    """Start a coordinator with a page; return it, its port, where the page is, and a token."""
    http_port = free_port()
    process, port = scene.start_coordinator(0, "--http-port", str(http_port), *options)
    scheme = "https" if scene.way is Way.DEFAULT else "http"
    return process, port, f"{scheme}://{LOOPBACK}:{http_port}", scene.view_token(port)


async def measure(scene: Scene) -> dict[str, float | None]:
    """Return medians of all windows, and of the differences of neighbours."""
    process, port, origin, ENVIRONMENT["BROWSERS_TOKEN"] = served(scene)
    address, credentials = f"{LOOPBACK}:{port}", scene.credentials(port)
    without, watched = [], []
    async with Fleet(address, SIZE, workers=WORKERS, credentials=credentials) as fleet:
        await fleet.time_to_assign()
        for _ in range(WINDOWS):
            without.append(await window(process))
            async with browsers(scene, origin, BROWSERS):
                watched.append(await window(process))
    return {
        "none": statistics.median(without),
        "open": statistics.median(watched),
        "over": statistics.median(b - a for a, b in zip(without, watched, strict=True)),
    }


def figures(way: str) -> dict[str, float | None]:
    """Return all figures of one fleet."""
    with Scene(Way(way)) as scene:
        return fake_agents.run(measure(scene))


RUNS = one_of_each(partial(figures))
QUESTIONS = tuple(
    Question(
        name=f"page_cost_{name}",
        text=f"coordinator's CPU, of one core, {SIZE:,} agents with {WORKERS} workers each, {how}",
        unit="%",
        repeats=1,
        **RUNS.in_each_way(name),
    )
    for name, how in (
        ("none", "page open nowhere"),
        ("open", f"page open in {BROWSERS} browsers"),
        ("over", f"page open in {BROWSERS} browsers, over none"),
    )
)
