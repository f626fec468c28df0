"""What workers and agents say is text on the page, whatever it looks like."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from tests.support.browser import needs_chromium
from tests.support.stage import HOSTILE, MARKUP

if TYPE_CHECKING:
    from tests.support.browser import Browser
    from tests.support.stage import Stage

pytestmark = [needs_chromium, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

# Made by what is written, of what the page has none itself; and what would act on a terminal.
MADE = (
    "[document.querySelectorAll('img, body script, [onerror]').length, [...document.body.innerText]"
)
ACTING = r".filter((each) => /[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]/.test(each))]"


async def test_markup_and_escapes_stay_text(browser: Browser, stage: Stage) -> None:
    async with browser.visit(stage.link(HOSTILE)) as visit:
        page = visit.page
        body = page.locator("body")
        await expect(page.locator("[data-kind=round_ended]").first).to_contain_text(
            r"<img src=x onerror=boom()><script>boom()</script><b>bold</b>&amp;"
        )
        await expect(page.locator("[data-kind=agent_admitted]").first).to_contain_text(MARKUP)
        await page.get_by_role("button", name="Follow").click()
        lines = page.get_by_role("log")
        await expect(lines).to_contain_text("<script>boom()</script>")
        await expect(lines).to_contain_text(r"\x1b]0;title\x07\u202eback")
        await page.get_by_role("button", name="Take stacks").click()
        await expect(page.locator("[data-stack-group]").first).to_be_visible()
        await page.locator("[data-ranks=canvas]").focus()
        await page.keyboard.press("Enter")
        details = page.locator("[data-ranks=details]")
        await expect(details).to_contain_text(MARKUP)
        await expect(details).to_contain_text("<img src=x onerror=boom()>")
        await page.locator("[data-failure]").last.hover()
        await expect(page.locator("[data-tip]")).to_contain_text("boom()")
        await expect(body).to_contain_text(MARKUP)
        assert await page.evaluate(MADE + ACTING) == [0, []]
        assert await page.title() == f"{HOSTILE} · Runs · drumbeat"
