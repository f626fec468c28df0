"""One run in a browser, while its workers train, fail and heal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from tests.support.browser import needs_chromium
from tests.support.stage import FAILED, TRAINING

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page

    from tests.support.browser import Browser
    from tests.support.stage import Stage

pytestmark = [needs_chromium, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


def section(page: Page, name: str) -> Locator:
    return page.locator(f"[data-section={name}]")


async def test_a_failure_is_on_the_timeline_and_leads_to_its_event(
    browser: Browser, stage: Stage
) -> None:
    async with browser.visit(stage.link(TRAINING)) as visit:
        page, timeline = visit.page, section(visit.page, "timeline")
        await expect(section(page, "headline")).to_contain_text("running")
        before = await page.locator("[data-failure]").count()
        message = stage.fail_a_worker()

        failures = page.locator("[data-failure]")
        await expect(failures).to_have_count(before + 1)
        await failures.last.hover()
        await expect(page.locator("[data-tip]")).to_contain_text(message)
        await failures.last.click()
        found = page.locator("[data-event].found")
        await expect(found).to_be_focused()
        await expect(found).to_contain_text(message)

        # All restarted, and train again.
        await expect(section(page, "headline")).to_contain_text("running")
        await expect(page.locator("[data-fact=round]")).to_contain_text(f"{stage.round_id}")
        await expect(page.locator("[data-kind=round_started]")).to_have_count(stage.round_id + 1)
        await expect(section(page, "goodput")).to_contain_text("worker failed")

        whole = await page.locator("[data-range]").inner_text()
        await timeline.get_by_role("button", name="Zoom in").click()
        await expect(page.locator("[data-range]")).not_to_have_text(whole)
        await page.keyboard.press("t")
        await expect(page.locator("[data-timeline]")).to_be_focused()
        for key in ("b", "Enter"):
            await page.keyboard.press(key)
        await expect(found).to_contain_text("loss is NaN")


async def test_a_run_leads_to_other_systems(browser: Browser, stage: Stage) -> None:
    async with browser.visit(stage.link(TRAINING)) as visit:
        link = visit.page.locator("[data-links] a")
        await expect(link).to_have_text("logs")
        await expect(link).to_have_attribute("href", f"https://logs.example/q?run={TRAINING}")


async def test_stacks_are_taken_and_logs_follow(browser: Browser, stage: Stage) -> None:
    async with browser.visit(stage.link(TRAINING)) as visit:
        page = visit.page
        await page.get_by_role("button", name="Take stacks").click()
        groups = page.locator("[data-stack-group]")
        await expect(groups.first).to_contain_text("steady")
        logs = section(page, "logs")
        await logs.get_by_label("Ranks").fill("0,3")
        await logs.get_by_role("button", name="Follow").click()
        lines = page.get_by_role("log")
        await expect(lines).to_contain_text("rank 0 trains at step")
        await expect(lines).to_contain_text("rank 3 trains at step")
        await expect(lines).not_to_contain_text("rank 1")
        seen = await lines.locator(".log-line").count()
        await expect(lines.locator(".log-line").nth(seen)).to_be_visible()
        await logs.get_by_role("button", name="Pause").click()
        await expect(page.locator("[data-log-status]")).to_contain_text("Paused")

        # What came while it was followed has a time.
        first = lines.locator(".log-line").nth(seen)
        await expect(first.locator("time")).to_be_hidden()
        await logs.get_by_label("times").check()
        await expect(first.locator("time")).to_have_text(re.compile(r"\d\d:\d\d:\d\d"))
        await logs.get_by_label("Search output").fill("RANK 3 trains at")
        await expect(lines.locator(".log-line:visible").first).to_contain_text("rank 3 trains")
        await expect(lines).not_to_contain_text("rank 0", use_inner_text=True)


async def test_the_end_of_the_output_is_there_when_the_run_is_over(
    browser: Browser, stage: Stage
) -> None:
    async with browser.visit(stage.link(FAILED)) as visit:
        page, logs = visit.page, section(visit.page, "logs")
        await logs.get_by_role("button", name="Show").click()
        lines = page.get_by_role("log")
        await expect(lines).to_contain_text("the data ends here")
        await expect(page.locator("[data-log-status]")).to_contain_text("the run has ended")
        await logs.get_by_label("Search output").fill("batch 7")
        await expect(lines.locator(".log-line:visible")).to_have_count(2)
        async with page.expect_download() as waiting:
            await logs.get_by_role("button", name="Download").click()
        download = await waiting.value
        assert download.suggested_filename == f"{FAILED}-output.txt"
        text = (await download.path()).read_text()
        assert text.splitlines()[-1].endswith("]: ValueError: batch 7 has no labels")
        await logs.get_by_label("Search output").fill("")
        await logs.get_by_label("Least level").select_option("error")
        await expect(lines.locator(".log-line:visible").first).to_contain_text("ERROR the data")
        await expect(lines.locator(".log-line:visible").last).to_contain_text("ValueError")
        await logs.get_by_label("Least level").select_option("critical")
        await expect(lines.locator(".log-line:visible")).to_have_count(0)


async def test_a_failed_run_shows_its_root_cause_first(browser: Browser, stage: Stage) -> None:
    async with browser.visit(stage.link(FAILED)) as visit:
        report = section(visit.page, "report")
        await expect(report.locator("[data-verdict]")).to_contain_text("round 0 failed")
        cause = report.locator("[data-root-cause]")
        await expect(cause.get_by_role("heading")).to_have_text("Root cause: rank 0 on gpu2")
        for evidence in ("exit code 1", "ValueError: batch 7 has no labels", "Traceback"):
            await expect(cause).to_contain_text(evidence)
        await expect(cause).to_contain_text("the data ends here")
        victims = report.locator("[data-victims]")
        await expect(victims).not_to_have_attribute("open", re.compile(""))
        await victims.locator("summary").click()
        await expect(victims.get_by_role("row").nth(1)).to_contain_text("gpu2")
