"""How soon does Chromium paint the page of a run with 10,000 agents of 8 workers?

A headless Debian Chromium on this host; each load has a profile of its own, so that nothing is
cached, and is timed by the browser itself, from the start of the navigation. Agents beat slowly:
at the usual pace a fleet of this size takes all of two cores, and leaves the browser none.
"""

from __future__ import annotations

import os
import shutil
import statistics
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from playwright.async_api import async_playwright

from bench.figures import OneOfEach, assigned_fleet, in_scenes
from bench.harness import STEP_S, Scene
from bench.looking.commands import RUN, SLOW_PACE
from bench.looking.page import served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser, Page, Playwright

SIZE, WORKERS = 10_000, 8
LOADS = 7

# Runs in the page at each frame; returns milliseconds since the navigation began.
_RANKS_PAINTED = """size => {
  const told = document.querySelector('[data-ranks="summary"]')?.textContent ?? "";
  return told.replace(/[,.\\s]/g, "").startsWith(`${size}ranks`) && performance.now();
}"""
_FIRST_PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"


async def launched(driver: Playwright) -> Browser:
    """Start Debian's Chromium."""
    arguments: dict[str, Any] = {"executable_path": shutil.which("chromium")}
    if os.geteuid() == 0:
        arguments["args"] = ["--no-sandbox"]
    return await driver.chromium.launch(**arguments)


@asynccontextmanager
async def visited(chromium: Browser, token: str) -> AsyncIterator[Page]:
    """Open a tab with a profile of its own, so that nothing is cached."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    context = await chromium.new_context(ignore_https_errors=True, extra_http_headers=headers)
    try:
        page = await context.new_page()
        page.set_default_timeout(STEP_S * 1e3)
        yield page
    finally:
        await context.close()


async def load(chromium: Browser, origin: str, token: str) -> tuple[float, float]:
    """Load the page of the run with nothing cached; return when there is something, and all."""
    async with visited(chromium, token) as page:
        await page.goto(f"{origin}/runs/{RUN}", wait_until="commit")
        painted = await page.wait_for_function(_RANKS_PAINTED, arg=SIZE * WORKERS)
        return float(await page.evaluate(_FIRST_PAINT)), float(await painted.json_value())


async def measure(scene: Scene) -> OneOfEach:
    """Return medians of all loads."""
    _, port, origin, token = served(scene, *SLOW_PACE)
    async with assigned_fleet(scene, port, SIZE, WORKERS), async_playwright() as driver:
        chromium = await launched(driver)
        loads = [await load(chromium, origin, token) for _ in range(LOADS)]
        await chromium.close()
    return {
        "first": statistics.median(first for first, _ in loads),
        "ranks": statistics.median(ranks for _, ranks in loads),
        "slowest": max(ranks for _, ranks in loads),
    }


OF = f"page of a run with {SIZE:,} agents of {WORKERS} workers, nothing cached"
QUESTIONS = in_scenes(measure).questions(
    "page_paint",
    (
        ("first", "ms", f"{OF}: first contentful paint"),
        ("ranks", "ms", f"{OF}: all ranks are painted"),
        ("slowest", "ms", f"{OF}: the slowest of {LOADS} loads"),
    ),
)
