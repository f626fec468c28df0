"""What does the page of a run cost the coordinator when 20 browsers have it open?

1,000 agents beat in this process; the browsers are in one of their own, and ask and read what the
page does, but draw nothing. Windows with and without them take turns, so that a change of
load meets both.
"""

from __future__ import annotations

import asyncio
import statistics
from typing import TYPE_CHECKING

from bench.cpu import shares
from bench.figures import OneOfEach, assigned_fleet, in_scenes
from bench.harness import ENVIRONMENT, LOOPBACK, Scene, free_port
from bench.looking.commands import RUN, looking
from bench.ways import Way
from drumbeat.v1 import control_pb2

if TYPE_CHECKING:
    import psutil

SIZE, WORKERS = 1_000, 8
BROWSERS = 20
SETTLE_S = 5.0
WINDOW_S = 20.0
WINDOWS = 3


async def window(coordinator: psutil.Process) -> float:
    """Return how much of a core the coordinator takes, in percent."""
    await asyncio.sleep(SETTLE_S)
    [percent] = await shares(WINDOW_S, coordinator)
    return percent


async def cost_of_browsers(
    scene: Scene, coordinator: psutil.Process, origin: str, token: str, run_id: str = RUN
) -> OneOfEach:
    """Return medians of windows with browsers and without, and of the differences of neighbours.

    The browsers look at a run, or without one at the list.
    """
    ENVIRONMENT["BROWSERS_TOKEN"] = token
    without, watched = [], []
    for _ in range(WINDOWS):
        without.append(await window(coordinator))
        what = (origin, run_id, str(BROWSERS))
        async with looking(scene, "bench.programs.browsers", *what):
            watched.append(await window(coordinator))
    return {
        "none": statistics.median(without),
        "open": statistics.median(watched),
        "over": statistics.median(b - a for a, b in zip(without, watched, strict=True)),
    }


def served(scene: Scene, *options: str) -> tuple[psutil.Popen, int, str, str]:
    """Start a coordinator with a page; return it, its port, where the page is, and a token."""
    http_port = free_port()
    process, port = scene.start_coordinator(0, "--http-port", str(http_port), *options)
    token = scene.new_token(port, control_pb2.ROLE_VIEW)
    scheme = "https" if scene.way is Way.DEFAULT else "http"
    return process, port, f"{scheme}://{LOOPBACK}:{http_port}", token


async def measure(scene: Scene) -> OneOfEach:
    """Return what the page of a run costs."""
    process, port, origin, token = served(scene)
    async with assigned_fleet(scene, port, SIZE, WORKERS):
        return await cost_of_browsers(scene, process, origin, token)


OF = f"coordinator's CPU, of one core, {SIZE:,} agents with {WORKERS} workers each"
QUESTIONS = in_scenes(measure).questions(
    "page_cost",
    (
        ("none", "%", f"{OF}, page open nowhere"),
        ("open", "%", f"{OF}, page open in {BROWSERS} browsers"),
        ("over", "%", f"{OF}, page open in {BROWSERS} browsers, over none"),
    ),
)
