"""A browser is let in by a link, once, and told what to do where it is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from tests.support.browser import needs_chromium
from tests.support.stage import FAILED, HOSTILE, TRAINING

if TYPE_CHECKING:
    from tests.support.browser import Browser
    from tests.support.stage import Stage

pytestmark = [needs_chromium, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

REFUSED = "401"


async def test_a_link_opens_the_list_of_runs_once(browser: Browser, stage: Stage) -> None:
    link = stage.link()
    async with browser.visit(link) as visit:
        page = visit.page
        for run_id in (TRAINING, FAILED, HOSTILE):
            await expect(page.get_by_role("link", name=run_id)).to_be_visible()
        # The code stands in no address that is kept.
        assert "code" not in page.url
        failed = page.get_by_role("row").filter(has_text=FAILED)
        await expect(failed).to_contain_text("failed")
        await expect(failed).to_contain_text("batch 7 has no labels")
        await page.get_by_role("searchbox").fill("label")
        await expect(page.get_by_role("link", name=TRAINING)).to_have_count(0)
        await page.get_by_role("link", name=FAILED).click()
        await page.reload()
        await expect(page.get_by_role("heading", level=1)).to_have_text(FAILED)
    async with browser.visit(link, errors=REFUSED) as visit:
        page = visit.page
        await expect(page.get_by_text("used before")).to_be_visible()
        code = page.get_by_label("Link or code")
        await code.fill("wrong")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("is not one of this coordinator's")).to_be_visible()
        await code.fill(stage.link())
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("link", name=TRAINING)).to_be_visible()
