"""What is wrong, what was sent of it, and who called what, in a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from tests.support.browser import needs_chromium
from tests.support.troubled_site import DRAINED, FAILED, SICK, troubled_site

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.browser import Browser

pytestmark = [needs_chromium, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


async def test_what_is_wrong_what_was_sent_and_who_called_what(
    browser: Browser, tmp_path: Path
) -> None:
    async with troubled_site(tmp_path) as origin, browser.visit(origin) as visit:
        page, asked = visit.page, list[str]()
        page.on("request", lambda request: asked.append(request.url.removeprefix(origin)))
        await page.get_by_role("link", name="Notifications").click()
        await expect(page).to_have_url(f"{origin}/notifications")
        firing = page.locator("[data-firing] tbody tr")
        await expect(firing).to_have_count(1)
        await expect(firing).to_contain_text("degraded")
        await expect(firing).to_contain_text("1 host is unhealthy")
        await expect(page.locator(f"[data-drain={DRAINED}]")).to_contain_text("memory")
        sent = page.locator("[data-sent] tbody tr").last
        await expect(sent).to_contain_text(f"run {FAILED}: failed")
        await expect(sent).to_contain_text("sent")

        audit = page.locator("[data-audit]")
        assert "/api/audit" not in asked, "it is read on demand"
        await audit.locator("summary").click()
        await expect(audit.locator("tbody tr").first).to_contain_text("DrainAgent")
        await firing.get_by_role("link", name=SICK).click()
        await expect(page.locator("[data-section=headline]")).to_contain_text(SICK)


async def test_without_trouble_it_says_so(browser: Browser, tmp_path: Path) -> None:
    async with troubled_site(tmp_path) as origin:
        quiet = f"{origin}/notifications"
        nothing = '{"firing": [], "drains": [], "hosts": [], "notifications": []}'
        async with browser.visit(origin) as visit:
            await visit.page.route(
                "**/api/notifications",
                lambda route: route.fulfill(body=nothing, content_type="application/json"),
            )
            await visit.page.goto(quiet)
            await expect(visit.page.get_by_text("Nothing is wrong.")).to_be_visible()
            await expect(visit.page.locator("[data-sent]")).to_have_text("Nothing was sent.")
            await expect(visit.page.locator("[data-outside]")).to_be_hidden()
