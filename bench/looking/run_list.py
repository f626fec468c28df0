"""How soon does Chromium list 2,000 runs, and what do 20 browsers with that list cost?

A thousand runs train, one agent of 8 workers each, and a thousand have ended: as many as are
remembered. Each load has a profile of its own, so that nothing is cached, and is timed by the
browser itself, from the start of the navigation. The 20 viewers are in a process of their own, and
ask and read what the page does, but draw nothing; windows with and without them take turns.
"""

from __future__ import annotations

import dataclasses
import resource
import statistics
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import psutil
from playwright.async_api import async_playwright

from bench.cpu import cpu_s
from bench.figures import OneOfEach, in_scenes
from bench.harness import LOOPBACK, Scene
from bench.looking.commands import SLOW_PACE
from bench.looking.page import BROWSERS, cost_of_browsers, served
from bench.looking.paint import launched, visited
from bench.recovery.ended_runs import HOURS, a_run
from bench.scale.fake_agents import Fleet
from drumbeat.coordinator.command.archiving.state_directory import StateDirectory
from drumbeat.coordinator.journal.archive import Archive

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.async_api import Browser

LIVE, ENDED, WORKERS = 1_000, 1_000, 8
LOADS = 5
LIST = ""  # what the browsers are given in place of a run

# Run in the page at each frame; return milliseconds since the navigation began.
_ROW_PAINTED = """() => document.querySelector("[data-runs] tbody tr") && performance.now()"""
_ALL_LISTED = """size => {
  const told = document.querySelector("[data-summary]")?.textContent ?? "";
  return told.replace(/[,.\\s]/g, "").startsWith(`${size}runs`) && performance.now();
}"""


async def fill(directory: Path) -> None:
    """Write a state directory with the runs that have ended."""
    ended = a_run("ended", is_ended=True)
    runs = [dataclasses.replace(ended, run_id=f"ended-{number}") for number in range(ENDED)]
    clock = HOURS * 3600.0 + 20.0
    await StateDirectory(directory).write(Archive(clock=clock, wall=time.time(), term=1, runs=runs))


def cpu_of_browser_s() -> float:
    """Return what all processes of Chromium, which belong to this one, have taken so far."""
    children = psutil.Process().children(recursive=True)
    return cpu_s(*(child for child in children if child.name().startswith("chrom")))


async def load(
    coordinator: psutil.Process, chromium: Browser, origin: str, token: str
) -> tuple[float, ...]:
    """Load the list with nothing cached.

    Returns milliseconds: when a row is painted, when all runs are known, and until then the CPU
    time of coordinator and browser.
    """
    async with visited(chromium, token) as page:
        before = cpu_s(coordinator), cpu_of_browser_s()
        await page.goto(origin, wait_until="commit")
        first = await page.wait_for_function(_ROW_PAINTED)
        every = await page.wait_for_function(_ALL_LISTED, arg=LIVE + ENDED)
        after = cpu_s(coordinator), cpu_of_browser_s()
        took = [1e3 * (b - a) for a, b in zip(before, after, strict=True)]
        return float(await first.json_value()), float(await every.json_value()), *took


async def measure_loads(coordinator: psutil.Process, origin: str, token: str) -> OneOfEach:
    """Return the medians of all loads."""
    async with async_playwright() as driver:
        chromium = await launched(driver)
        loads = [await load(coordinator, chromium, origin, token) for _ in range(LOADS)]
        await chromium.close()
    names = ("first", "all", "load_coordinator", "load_browser")
    return dict(zip(names, map(statistics.median, zip(*loads, strict=True)), strict=True))


async def measure(scene: Scene) -> OneOfEach:
    """Return all figures."""
    await fill(scene.directory / "state")
    process, port, origin, token = served(scene, *SLOW_PACE)
    address, credentials = f"{LOOPBACK}:{port}", scene.credentials(port)
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
    async with AsyncExitStack() as stack:
        names = [f"live-{number}" for number in range(LIVE)]
        fleets = [Fleet(address, 1, n, workers=WORKERS, credentials=credentials) for n in names]
        for fleet in fleets:
            await stack.enter_async_context(fleet)
        for fleet in fleets:
            await fleet.time_to_assign()
        loads = await measure_loads(process, origin, token)
        return loads | await cost_of_browsers(scene, process, origin, token, LIST)


OF = f"list of {LIVE + ENDED:,} runs, {LIVE:,} of which train"
CPU = f"{OF}: coordinator's CPU, of one core, open"
QUESTIONS = in_scenes(measure).questions(
    "run_list",
    (
        ("first", "ms", f"{OF}: the first row is painted, nothing cached, median of {LOADS} loads"),
        ("all", "ms", f"{OF}: all runs are known to the page"),
        ("load_coordinator", "ms", f"{OF}: coordinator's CPU time of a load"),
        ("load_browser", "ms", f"{OF}: browser's CPU time of a load"),
        ("none", "%", f"{CPU} nowhere"),
        ("open", "%", f"{CPU} in {BROWSERS} browsers"),
        ("over", "%", f"{CPU} in {BROWSERS} browsers, over none"),
    ),
)
