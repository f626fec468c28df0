"""The list of runs: health first, found again among thousands, and kept in the address."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from playwright.async_api import expect

from drumbeat.coordinator.core.model import KeptDrain
from tests.support.browser import needs_chromium
from tests.support.pages import site
from tests.support.shown_runs import HOUR, ShownRuns, last_failure
from tests.support.waiting import MS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from playwright.async_api import Page

    from tests.support.browser import Browser

pytestmark = [needs_chromium, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

PAINTED_MAX_S = 5_000 * MS
"""From the request for the page until 2,000 runs are listed: ten times what is promised, because
all that the browser and the coordinator do shares the machine of the tests with others."""
HEALTHS = (
    *("crash_loop", "hanging", "no_progress", "failed"),
    *("degraded", "waiting", "healthy", "stopped", "succeeded"),
)


class Scene(ShownRuns):
    """Runs on a page."""

    origin = ""

    def hide(self, run_id: str) -> None:
        del self._driver.journal.runs.states[run_id]

    def many(self, count: int) -> None:
        """Show runs of which each tenth trains."""
        for at in range(count):
            over = {} if at % 10 == 0 else {"ended_age": 60.0 * at}
            health = "failed" if at % 10 == 9 else "succeeded" if over else "healthy"
            more = {"step": at, "effective_ratio": at / count, "restarts_max": 9}
            self.show(f"run-{at:04}", health, "as it is", age=HOUR + 60 * at, **over, **more)


@pytest_asyncio.fixture(loop_scope="session")
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    async with site(tmp_path, insecure=True) as made:
        scene = Scene(made.driver, monkeypatch)
        scene.origin = made.origin
        yield scene
        made.driver.journal.runs.states.clear()


async def names(page: Page) -> list[str]:
    return await page.locator("[data-runs] tbody [data-run] a").all_inner_texts()


async def test_what_needs_attention_is_first_with_its_reason(
    browser: Browser, scene: Scene
) -> None:
    ended = {"failed": 120.0, "stopped": 130.0, "succeeded": 140.0}
    for health in reversed(HEALTHS):
        over = {"ended_age": ended[health]} if health in ended else {}
        scene.show(f"a-{health}", health, f"because it is {health}", **over)
    scene.show("old", "failed", "long ago", age=90 * HOUR, ended_age=80 * HOUR)
    failure = last_failure("worker failed: rank 7 on gpu1: OOM", 125)
    scene.show("again", "crash_loop", "failed 12 times", last_failure=failure)
    async with browser.visit(scene.origin) as visit:
        page = visit.page
        loop = page.locator("[data-run=again]")
        await expect(loop).to_contain_text("failed 12 times")
        await expect(loop.locator("[data-state=crash_loop]")).to_have_text("crash loop")
        muted = loop.locator("small")
        await expect(muted).to_have_text("last failure 2m ago: worker failed: rank 7 on gpu1: OOM")
        in_order = [f"a-{health}" for health in HEALTHS]
        assert await names(page) == [in_order[0], "again", *in_order[1:], "old"]

        # What goes on moves no row; another health does.
        scene.show("a-waiting", "waiting", "for 1 min", step=7)
        await expect(page.locator("[data-run=a-waiting] [data-cell=step]")).to_have_text("7")
        assert await names(page) == [in_order[0], "again", *in_order[1:], "old"]
        scene.show("a-waiting", "hanging", "rank 3 waits")
        await expect(page.locator("[data-run=a-waiting] [data-state]")).to_have_text("hanging")
        assert (await names(page))[2:4] == ["a-hanging", "a-waiting"]


async def test_chips_are_exact_and_a_search_is_for_words(browser: Browser, scene: Scene) -> None:
    scene.show("mt5", "healthy", "training", labels={"owner": "anna", "team": "speech"})
    scene.show("bert", "failed", "ValueError: no labels", ended_age=9.0, labels={"owner": "ben"})
    failure = last_failure("the worker failed", 5)
    scene.show("t5", "degraded", "training since round 2 failed", last_failure=failure)
    async with browser.visit(scene.origin) as visit:
        page, search = visit.page, visit.page.get_by_role("searchbox")
        rows = page.locator("[data-runs] tbody tr")
        await expect(rows).to_have_count(3)
        await page.get_by_role("button", name="failed 1").click()
        await expect(page).to_have_url(re.compile("health=failed"))
        assert await names(page) == ["bert"]
        await page.get_by_role("button", name="degraded 1").click()
        assert await names(page) == ["bert", "t5"]
        await page.reload()
        await expect(rows).to_have_count(2)
        await page.go_back()
        await expect(rows).to_have_count(1)
        await page.go_back()
        await expect(rows).to_have_count(3)
        for text, wanted in {
            "anna": ["mt5"],
            "team speech": ["mt5"],
            "label": ["bert"],
            "abel": [],
            "worker": [],
            "T5 train": ["t5"],
        }.items():
            await search.fill(text)
            await expect(rows).to_have_count(len(wanted))
            assert await names(page) == wanted
        await expect(page).to_have_url(re.compile(r"q=T5\+train"))
        await page.reload()
        await expect(rows).to_have_count(1)
        await expect(search).to_have_value("T5 train")


async def test_columns_are_sorted_by_keys_and_rows_stay_as_numbers_grow(
    browser: Browser, scene: Scene
) -> None:
    for name, step in (("a", 5), ("b", 7), ("c", None)):
        scene.show(name, "healthy", "training", step=step)
    async with browser.visit(scene.origin) as visit:
        page, keys = visit.page, visit.page.keyboard
        head = page.get_by_role("columnheader", name="Step")
        await expect(page.locator("[data-run=a]")).to_be_visible()
        await head.get_by_role("button").focus()
        await keys.press("Enter")
        await expect(head).to_have_attribute("aria-sort", "descending")
        assert await names(page) == ["b", "a", "c"]
        scene.show("a", "healthy", "training", step=9)
        await expect(page.locator("[data-run=a] [data-cell=step]")).to_have_text("9")
        assert await names(page) == ["b", "a", "c"]
        await keys.press("Enter")
        await expect(head).to_have_attribute("aria-sort", "ascending")
        assert await names(page) == ["b", "a", "c"]  # what is not known is last
        await keys.press("Enter")
        await expect(head).not_to_have_attribute("aria-sort", re.compile(""))
        await page.go_back()
        await expect(head).to_have_attribute("aria-sort", "ascending")


async def test_thousands_are_painted_at_once_and_back_leads_to_the_same_place(
    browser: Browser, scene: Scene
) -> None:
    scene.many(2_000)
    async with browser.visit(f"{scene.origin}/foo", errors="404") as visit:
        page = visit.page
        await expect(page.get_by_role("heading", level=1)).to_have_text("There is no such page")
        await page.goto(scene.origin)
        rows = page.locator("[data-runs] tbody tr")
        await expect(rows).to_have_count(50)
        assert await page.evaluate("performance.now() / 1000") < PAINTED_MAX_S
        await expect(page.locator("[data-summary]")).to_have_text("2\u202f000 runs, 200 live")
        await page.get_by_role("button", name="succeeded 1\u202f600").click()
        await page.get_by_role("button", name="Next").click()
        await expect(page.locator("[data-range]")).to_have_text("51 to 100 of 1\u202f600")
        chosen = rows.nth(30).get_by_role("link")
        await chosen.scroll_into_view_if_needed()
        scrolled, name = await page.evaluate("scrollY"), await chosen.inner_text()
        assert scrolled > 500
        await chosen.click()
        await expect(page.get_by_role("heading", level=1)).to_have_text(f"There is no run “{name}”")
        await page.go_back()
        await expect(page.locator("[data-range]")).to_have_text("51 to 100 of 1\u202f600")
        await expect(rows.nth(30).get_by_role("link")).to_have_text(name)
        assert await page.evaluate("scrollY") == scrolled
        await page.go_back()
        await expect(page.locator("[data-range]")).to_have_text("1 to 50 of 1\u202f600")


async def test_generations_are_one_row_and_two_runs_are_compared(
    browser: Browser, scene: Scene
) -> None:
    for generation in (1, 2, 3):
        ended = {} if generation == 3 else {"ended_age": 1800.0}
        health = "failed" if ended else "healthy"
        more = {"effective_ratio": generation / 10, "failed_count": 3 - generation}
        scene.show("mt5", health, f"it is {health}", generation=generation, **ended, **more)
    scene.show("bert", "healthy", "training")
    async with browser.visit(scene.origin) as visit:
        page = visit.page
        rows = page.locator("[data-runs] tbody tr")
        await expect(rows).to_have_count(2)
        # An earlier one that has failed is no failed run.
        await expect(page.get_by_role("button", name="failed")).to_have_count(0)
        await page.get_by_role("button", name="2 earlier").click()
        assert await names(page) == [*("bert", "mt5 (generation 3)", "mt5 (generation 2)", "mt5")]
        await expect(rows.nth(1).get_by_role("link")).to_have_attribute("href", "/runs/mt5")
        old = rows.nth(2).get_by_role("link")
        await expect(old).to_have_attribute("href", "/runs/mt5?generation=2")
        for at in (1, 2):
            await rows.nth(at).get_by_role("checkbox").check()
        compared = page.locator("[data-comparison]")
        for title, values in {
            "Health": ("healthy", "failed"),
            "Duration": ("1h", "30m"),
            "Goodput": ("30.0%", "20.0%"),
            "Failures": ("0", "1"),
        }.items():
            head = page.get_by_role("rowheader", name=title, exact=True)
            line = compared.get_by_role("row").filter(has=head)
            await expect(line.get_by_role("cell")).to_have_text(list(values))
        await page.reload()
        await expect(compared.get_by_role("row")).to_have_count(12)
        await compared.get_by_role("button", name="Close").click()
        await expect(compared).to_be_hidden()


async def test_a_run_that_is_forgotten_leaves_the_list_and_drains_are_below_it(
    browser: Browser, scene: Scene
) -> None:
    scene.show("mt5", "healthy")
    scene.show("gone", "succeeded", ended_age=1.0)
    drain = KeptDrain(name="gpu9", reason="fans", caller="anna", at_s=scene._driver.now())
    scene._driver.journal.drains[drain.key] = drain
    async with browser.visit(scene.origin) as visit:
        page = visit.page
        line = page.locator("[data-drain=gpu9]")
        await expect(line).to_contain_text("all runs")
        await expect(line.get_by_role("link")).to_have_attribute("href", "/hosts/gpu9")
        for text in ("fans", "anna", "until undrained"):
            await expect(line).to_contain_text(text)
        await expect(page.locator("[data-run=gone]")).to_be_visible()
        scene.hide("gone")
        del scene._driver.journal.drains[drain.key]
        await expect(page.locator("[data-run=gone]")).to_have_count(0)
        await expect(page.locator("[data-outside]")).to_be_hidden()
        assert await names(page) == ["mt5"]


async def test_times_are_local_or_utc_as_one_chooses(browser: Browser, scene: Scene) -> None:
    scene.show("mt5", "healthy", age=HOUR)
    looks: dict[str, Any] = {
        "timezone_id": "Asia/Kolkata",
        "viewport": {"width": 390, "height": 800},
    }
    async with browser.visit(scene.origin, **looks) as visit:
        page = visit.page
        zone, started = page.locator("#zone"), page.locator("[data-run=mt5] [data-cell=started]")
        await expect(zone).to_have_text("UTC+05:30")
        local = await started.get_attribute("title")
        await page.keyboard.press("z")
        await expect(zone).to_have_text("UTC")
        await page.reload()
        await expect(zone).to_have_text("UTC")
        utc = await started.get_attribute("title")
        assert local
        assert utc
        assert int(local[-5:-3]) == (int(utc[-5:-3]) + 30) % 60
        # All is reached on a telephone too.
        await expect(page.locator("#caller")).to_be_visible()
        await page.get_by_role("button", name="Keys").click()
        await expect(page.get_by_role("dialog")).to_contain_text("local time or UTC")
