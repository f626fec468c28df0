"""The page can be read and used: light and dark, on a telephone, by keys, without colour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from playwright.async_api import expect

from tests.support.browser import needs_chromium
from tests.support.stage import FAILED, TRAINING

if TYPE_CHECKING:
    from tests.support.browser import Browser, Visit
    from tests.support.stage import Stage

pytestmark = [needs_chromium, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

BYTES_MAX = 200_000
TABS_MAX = 150


async def show(visit: Visit, run_id: str) -> None:
    """Show a run and all its sections."""
    page = visit.page
    await page.get_by_role("link", name=run_id).click()
    await expect(page.get_by_role("heading", level=1)).to_have_text(run_id)
    await expect(page.locator("[data-part=training]").first).to_be_attached()


@pytest.mark.parametrize(
    "look",
    [
        {"color_scheme": "light", "viewport": {"width": 1280, "height": 800}},
        {"color_scheme": "dark", "viewport": {"width": 360, "height": 740}, "has_touch": True},
    ],
    ids=["light", "dark-on-a-telephone"],
)
async def test_all_is_legible_and_has_a_name(
    browser: Browser, stage: Stage, look: dict[str, Any]
) -> None:
    async with browser.visit(stage.link(), **look) as visit:
        page = visit.page
        assert await page.locator("html").get_attribute("data-theme") == look["color_scheme"]
        for run_id in ("", TRAINING, FAILED):
            if run_id:
                await page.goto(f"{page.url.partition('/runs')[0].rstrip('/')}/runs/{run_id}")
                await expect(page.locator("[data-phase]")).not_to_be_empty()
            else:
                await expect(page.get_by_role("link", name=TRAINING)).to_be_visible()
            assert await visit.look("tooWide") == []
            assert await visit.look("withoutName") == []
            assert await visit.look("illegible") == []


async def test_the_other_look_is_chosen_and_kept(browser: Browser, stage: Stage) -> None:
    async with browser.visit(stage.link(), color_scheme="light") as visit:
        page = visit.page
        await expect(page.get_by_role("link", name=TRAINING)).to_be_visible()
        await page.keyboard.press("d")
        await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        await page.reload()
        await expect(page.locator("html")).to_have_attribute("data-theme", "dark")


async def test_everything_is_reached_by_keys_alone(browser: Browser, stage: Stage) -> None:
    async with browser.visit(stage.link()) as visit:
        page, keys = visit.page, visit.page.keyboard
        await expect(page.get_by_role("link", name=FAILED)).to_be_visible()
        while await page.evaluate("document.activeElement.textContent") != FAILED:
            await keys.press("Tab")
        await keys.press("Enter")
        await expect(page.locator("[data-victims]")).to_be_visible()
        wanted = await visit.look("focusable")
        await page.evaluate("document.activeElement.blur()")
        reached: set[int] = set()
        for _ in range(TABS_MAX):
            await keys.press("Tab")
            focused = await visit.look("focused")
            if focused["number"] in reached:
                break
            assert focused["isSeen"], focused
            reached.add(focused["number"])
        assert [each for each in wanted if each["number"] not in reached] == []

        await keys.press("?")
        dialog = page.get_by_role("dialog")
        await expect(dialog.get_by_role("button")).to_be_focused()
        for _ in range(3):
            await keys.press("Tab")
            assert await page.evaluate("document.activeElement.closest('dialog, body').tagName")
        await keys.press("Escape")
        await expect(dialog).to_have_count(0)
        await keys.press("u")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Runs")


async def test_each_view_is_small(browser: Browser, stage: Stage) -> None:
    async with browser.visit(stage.link(TRAINING)) as visit:
        await expect(visit.page.locator("[data-phase]")).to_have_text("running")
        await expect(visit.page.locator("[data-ranks=summary]")).to_contain_text("ranks")
        assert 100_000 < await visit.look("bytesLoaded") < BYTES_MAX
    async with browser.visit(stage.link()) as visit:
        await expect(visit.page.get_by_role("link", name=TRAINING)).to_be_visible()
        assert 50_000 < await visit.look("bytesLoaded") < BYTES_MAX / 2
        # Its styles come with another view.
        await visit.page.get_by_role("link", name=TRAINING).click()
        await expect(visit.page.locator("[data-ranks=summary]")).to_contain_text("ranks")
        assert await visit.page.locator("link[href='/ranks/ranks.css']").count() == 1
