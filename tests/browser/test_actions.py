"""What an admin may do on the page and no other may, also after the coordinator was away."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from drumbeat.access.token import Role
from tests.support.browser import needs_chromium
from tests.support.stage import TRAINING, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.async_api import Locator, Page

    from tests.support.browser import Browser

pytestmark = [needs_chromium, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

ACTIONS = ("Checkpoint now", "Restart", "Drain…", "Undrain…", "Stop")
AWAY = "net::ERR_|answer 503|status of 503"
"""What a page logs while the coordinator is away, of itself."""


@pytest.fixture
def own_stage() -> Iterator[Stage]:
    """One whose coordinator may be killed, and whose run may be stopped."""
    with Stage(is_small=True) as stage:
        yield stage


def event(page: Page, kind: str, text: str = "") -> Locator:
    return page.locator(f"[data-kind={kind}]").filter(has_text=text).first


async def do(page: Page, action: str, confirm: str, reason: str, name: str = "") -> None:
    """Click an action, fill in its dialog, and confirm it there."""
    await page.bring_to_front()  # another one paints once a second
    await page.get_by_role("button", name=action, exact=True).click()
    dialog = page.get_by_role("dialog")
    if name:
        await dialog.get_by_label(re.compile("^Name")).fill(name)
    await dialog.get_by_label("Reason").fill(reason)
    await dialog.get_by_role("button", name=confirm, exact=True).click()
    await expect(dialog).to_have_count(0)
    await expect(page.locator("[data-outcome]")).to_contain_text(confirm)


async def test_a_reader_may_change_nothing(browser: Browser, stage: Stage) -> None:
    async with browser.visit(stage.link(TRAINING, Role.VIEW), errors="403") as visit:
        await expect(visit.page.locator("[data-phase]")).to_have_text("running")
        await expect(visit.page.locator("#caller")).to_contain_text("view")
        for action in ACTIONS:
            await expect(visit.page.get_by_role("button", name=action, exact=True)).to_have_count(0)
        # What a page of another making would send.
        status = await visit.page.evaluate(
            """async () => (await fetch("/api/runs/mt5-large/stop", {
                 method: "POST", body: "{}", headers: {"Content-Type": "application/json"},
               })).status"""
        )
        assert status == 403


async def test_a_drain_in_all_runs_is_lifted_where_it_is_shown(
    browser: Browser, own_stage: Stage
) -> None:
    stage = own_stage
    stage.coordinator.operate("drain", "gpu9", "--reason", "fans")
    async with browser.visit(stage.link(TRAINING)) as visit:
        page = visit.page
        row = page.get_by_role("row").filter(has_text="gpu9")
        await expect(row).to_contain_text("in all runs, by hostuser: fans")
        await row.get_by_role("button", name="Undrain gpu9").click()
        await page.get_by_role("dialog").get_by_role("button", name="Undrain", exact=True).click()
        await expect(page.locator("[data-outcome]")).to_contain_text("may take part")
        assert stage.coordinator.operate("drains", "-o", "json").stdout.count("gpu9") == 0


async def test_an_admin_steers_in_two_tabs_while_the_coordinator_dies(
    browser: Browser, own_stage: Stage
) -> None:
    stage = own_stage
    async with browser.visit(stage.link(TRAINING), errors=AWAY) as visit:
        page, other = visit.page, await visit.context.new_page()
        await expect(page.locator("[data-phase]")).to_have_text("running")
        await other.goto(page.url)
        await do(page, "Checkpoint now", "Checkpoint now", "before the night")
        await expect(event(other, "notice_given")).to_be_visible()

        stage.coordinator.kill()
        for tab in (page, other):
            await expect(tab.locator("#connection")).to_have_text("offline")
            await expect(tab.locator("#outage")).to_contain_text("reconnecting")
        stage.coordinator.restart()
        for tab in (page, other):
            await expect(tab.locator("#connection")).to_have_text("live")
            await expect(tab.locator("#outage")).to_be_hidden()
        await expect(page.locator("[data-phase]")).to_have_text("running")

        # All that is shown is of the new coordinator, and the same session still counts.
        await do(other, "Restart", "Restart", "another seed")
        await expect(event(page, "restart_asked", "another seed")).to_be_visible()
        await expect(page.locator("[data-fact=round]")).to_contain_text("1")
        await do(page, "Drain…", "Drain", "fans", name="gpu9")
        await do(page, "Undrain…", "Undrain", "repaired", name="gpu9")
        await page.get_by_role("button", name="Stop", exact=True).click()  # and thinks again
        await expect(page.get_by_role("dialog")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await expect(page.locator("[data-phase]")).to_have_text("running")
        await do(page, "Stop", "Stop the run", "wrong data")
        for tab in (page, other):
            await expect(tab.locator("[data-health]")).to_have_text("stopped")
            await expect(event(tab, "run_stopped", "wrong data")).to_be_visible()
    assert stage.agents["gpu0"].wait() == 4
