"""Who opens a run sees in the first three lines how it is and what is wrong with it."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from tests.support.browser import needs_chromium
from tests.support.health_stories import (
    SLOW,
    STORIES,
    WAITING,
    crash_loop,
    fail,
    failed,
    played,
)
from tests.support.story_page import ShownRun, serving

if TYPE_CHECKING:
    from playwright.async_api import Download, Page

    from tests.support.browser import Browser

pytestmark = [needs_chromium, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

ADVICE = "always rank 1, on c and b: likely code or data, not a host"
LOOP, GROUP = (f"ValueError at train.py:33{sign} 7 times: {ADVICE}" for sign in ("", ","))
LINES = {
    "healthy": ("run healthy running", "training, round 0 for 1 min", ""),
    "crash-loop": (
        "run crash loop running",
        f"failed 8 times, the last 3 within 10 s; {LOOP}; training, round 8 for 5",
        "last failure 5s ago: round 7 failed: rank 1 on c",
    ),
    "straggler": ("run degraded running", "slow: rank 2 on c takes 250 ms for a step", ""),
    "hang": ("run hanging running", "rank 1 on b is in __getitem__ (data.py:9)", ""),
    "waiting": ("run waiting gathering", "1 of 2 agents, waiting for 1", ""),
    "failed": (
        "run failed ended: worker failed",
        "rank 1 on b (exit code 1, ValueError: batch 7 has no labels); no restarts are allowed",
        "last failure 2m ago",
    ),
    "stopped": ("run stopped ended", "stopped by ada: wrong data", ""),
}
LIVE = {"grid", "step-times", "stacks"}
ALWAYS = {"timeline", "hosts", "goodput", "events"}
CARDS = {
    **dict.fromkeys(("healthy", "crash-loop", "straggler", "hang"), ALWAYS | LIVE | {"logs"}),
    "waiting": ALWAYS | {"join"},
    "failed": ALWAYS | {"report", "logs"},
    "stopped": ALWAYS | {"logs"},
}


async def written(download: Download) -> str:
    path = await download.path()
    return await asyncio.to_thread(path.read_text)


async def lines(page: Page) -> list[str]:
    """Return the first three lines of the headline."""
    await expect(page.locator("[data-health]")).not_to_be_empty()
    rows = page.locator("[data-section=headline] > *:visible")
    return [" ".join((await rows.nth(at).inner_text()).split()) for at in range(3)]


@pytest.mark.parametrize("name", STORIES)
async def test_what_is_wrong_is_in_the_first_three_lines(browser: Browser, name: str) -> None:
    async with (
        serving({"run": ShownRun(STORIES[name]())}) as origin,
        browser.visit(f"{origin}/runs/run") as visit,
    ):
        page = visit.page
        seen = await lines(page)
        for line, part in zip(seen, LINES[name], strict=True):
            assert part in line, seen
        # And there are the cards that are of use to such a run, and no others.
        await expect(page.locator("[data-contents]:visible")).to_have_count(len(CARDS[name]))
        cards = await page.locator(".card:visible").evaluate_all("all => all.map(({ id }) => id)")
        assert set(cards) == CARDS[name]
        for function in ("tooWide", "withoutName", "illegible"):
            assert await visit.look(function) == []


async def test_failures_of_one_cause_are_a_line_and_their_hosts_are_marked(
    browser: Browser,
) -> None:
    async with (
        serving({"r": ShownRun(crash_loop())}) as origin,
        browser.visit(f"{origin}/runs/r") as visit,
    ):
        page = visit.page
        await expect(page.locator("[data-failure-group]")).to_have_text(
            [GROUP, "a host was lost, 1 time: on b"]
        )
        # One number, wherever it is told.
        await expect(page.locator("[data-fact=failures] dd")).to_have_text("8")
        await expect(page.locator("[data-goodput-sentence]")).to_contain_text("8 failures")
        await expect(page.locator("[data-timeline]")).to_have_attribute(
            "aria-label", re.compile("8 failures")
        )
        await expect(page.locator("[data-fact=lost] dd")).to_have_text("1")
        failed = page.locator("tr[data-failed]")
        await expect(failed).to_have_count(2)
        await expect(failed.first).to_contain_text("failed: ValueError at train.py:33, 7 times")


async def test_a_failed_run_names_the_host_that_it_failed_on(browser: Browser) -> None:
    async with (
        serving({"r": ShownRun(failed())}) as origin,
        browser.visit(f"{origin}/runs/r") as visit,
    ):
        hosts = visit.page.locator("[data-section=hosts]")
        row = hosts.get_by_role("row").nth(1)
        await expect(row).to_contain_text("root cause: rank 1 failed here")
        await expect(row).to_contain_text("failed")
        await expect(hosts.get_by_role("row").nth(2)).to_contain_text("ended with the run")
        await expect(hosts.get_by_role("button", name="Drain")).to_have_count(0)


async def test_a_run_that_waits_says_for_how_long_and_how_hosts_join(browser: Browser) -> None:
    async with (
        serving({"mt5": ShownRun(played(WAITING))}) as origin,
        browser.visit(f"{origin}/runs/mt5") as visit,
    ):
        page = visit.page
        await visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
        join = page.locator("[data-section=join]")
        await expect(join).to_contain_text(
            "1 of 2 hosts joined. The run gives up in 9m unless 1 more host joins."
        )
        await join.get_by_role("button", name="Copy the command").click()
        await expect(join.get_by_role("button")).to_have_text("Done")
        copied = await page.evaluate("navigator.clipboard.readText()")
        assert copied == "agent join --coordinator head:29400 --insecure --run-id run --nnodes 2 …"


async def test_there_is_no_such_run_and_nothing_can_be_done_to_it(browser: Browser) -> None:
    async with (
        serving({"mt5-large": ShownRun(played("run 2"))}) as origin,
        browser.visit(f"{origin}/runs/mt5-lagre", errors="404") as visit,
    ):
        page = visit.page
        heading = page.get_by_role("heading", level=1)
        await expect(heading).to_have_text("There is no run “mt5-lagre”")
        await expect(page.locator("#connection")).to_be_hidden()
        await expect(page.get_by_role("button", name="Stop")).to_have_count(0)
        await page.locator("[data-similar]").get_by_role("link", name="mt5-large").click()
        await expect(page.locator("[data-health]")).to_have_text("healthy")
        await expect(page.locator("#connection")).to_have_text("live")
        await page.goto(f"{origin}/runs/mt5-large?generation=4")
        await expect(heading).to_have_text("There is no generation 4 of the run “mt5-large”")
        await expect(page.get_by_role("link", name="mt5-large")).to_be_visible()


async def test_a_run_is_handed_on_as_documents_and_tables(browser: Browser) -> None:
    async with (
        serving({"r": ShownRun(played(SLOW))}) as origin,
        browser.visit(f"{origin}/runs/r") as visit,
    ):
        page = visit.page
        files = {}
        for what in ("JSON of the run", "CSV of goodput", "CSV of step times"):
            async with page.expect_download() as begun:
                await page.get_by_role("button", name=f"Download {what}").click()
            download = await begun.value
            files[download.suggested_filename] = await written(download)
        assert json.loads(files["r.json"])["health"] == "degraded"
        kinds = {row["kind"] for row in csv.DictReader(io.StringIO(files["r-goodput.csv"]))}
        assert kinds >= {"part", "segment"}
        times = list(csv.DictReader(io.StringIO(files["r-step-times.csv"])))
        slow = [row for row in times if row["rank"] == "2" and row["step_time_s"]]
        assert {row["name"] for row in slow} == {"c"}
        assert float(slow[-1]["step_time_s"]) == pytest.approx(0.25)


async def test_own_work_is_shown_where_a_straggler_was_found_by_it(browser: Browser) -> None:
    run = ShownRun(played(SLOW))
    slow = [{**straggler, "is_busy_time": True} for straggler in run.document["stragglers"]]
    median = run.answer("/step-times")["median_s"]
    run.about["stragglers"] = slow
    run.step_times = {"stragglers": slow, "median_busy_s": median}
    async with (
        serving({"r": run}) as origin,
        browser.visit(f"{origin}/runs/r") as visit,
    ):
        steps = visit.page.locator("[data-section=step-times]")
        await steps.scroll_into_view_if_needed()
        await expect(steps).to_contain_text("250ms of own work a step against 100ms")
        await expect(steps.get_by_role("button", name="Own work")).to_have_attribute(
            "aria-pressed", "true"
        )


async def test_keys_lead_to_the_ranks_and_to_the_latest_failure(browser: Browser) -> None:
    story = played("run 2 restarts_max=9 restart_delay_max_s=0\ntrain 0:9")
    for name in ("b", "a"):
        fail(story, name)
        story.advance(9.0)
    async with (
        serving({"r": ShownRun(story)}) as origin,
        browser.visit(f"{origin}/runs/r") as visit,
    ):
        page = visit.page
        await expect(page.locator("[data-failure]")).to_have_count(2)
        await expect(page.locator("[data-ranks=canvas]")).to_be_visible()
        await page.keyboard.press("r")
        await expect(page.locator("[data-ranks=canvas]")).to_be_focused()
        await page.evaluate("document.activeElement.blur()")
        await page.keyboard.press("n")
        await expect(page.locator("[data-tip]")).to_contain_text("failure 2 of 2")
        await page.keyboard.press("b")
        await expect(page.locator("[data-tip]")).to_contain_text("failure 1 of 2")


async def test_how_far_training_is_is_shown_as_far_as_it_is_known(browser: Browser) -> None:
    far = {
        "step": 1200,
        "steps_total": 5000,
        "steps_per_second": 0.4,
        "time_left_s": 9500.0,
        "step_farthest": 1250,
        "checkpoint_step": 1100,
        "checkpoint_age_s": 190.0,
    }
    known = {"far": far, "few": dict.fromkeys(far) | {"step": 7, "steps_total": 0}, "none": None}
    known["over"] = dict.fromkeys(far) | {"step_farthest": 59, "steps_total": 0}
    story = STORIES["healthy"]()
    shown = {name: ShownRun(story, about={"progress": some}) for name, some in known.items()}
    async with serving(shown) as origin, browser.visit(f"{origin}/runs/far") as visit:
        page = visit.page
        for name, text in (
            ("step", "1\u202f200 of 5\u202f000 (24.0%)"),
            ("pace", "2.5s a step"),
            ("time-left", "2h38m"),
            ("farthest", "1\u202f250"),
            ("checkpoint", "step 1\u202f100, 3m ago"),
        ):
            await expect(page.locator(f"[data-fact={name}] dd")).to_have_text(text)
        for run, step in (("few", "7"), ("over", "59"), ("none", "59")):
            await page.goto(f"{origin}/runs/{run}")
            await expect(page.locator("[data-fact=step] dd")).to_have_text(step)
            for name in ("pace", "time-left", "farthest", "checkpoint"):
                await expect(page.locator(f"[data-fact={name}]")).to_be_hidden()


async def test_a_hang_that_is_found_is_no_failure_of_the_timeline(browser: Browser) -> None:
    async with (
        serving({"r": ShownRun(STORIES["hang"]())}) as origin,
        browser.visit(f"{origin}/runs/r") as visit,
    ):
        timeline = visit.page.locator("[data-section=timeline]")
        await expect(timeline.locator("[data-legend=slow]")).to_be_visible()
        await expect(timeline.locator("[data-failure]")).to_have_count(0)


async def test_back_and_a_reload_bring_back_what_was_chosen(browser: Browser) -> None:
    async with (
        serving({"r": ShownRun(crash_loop())}) as origin,
        browser.visit(f"{origin}/runs/r", errors="404") as visit,
    ):
        page = visit.page
        details = page.locator("[data-ranks=details]")
        await page.get_by_role("button", name="Zoom in").click()
        await page.keyboard.press("r")
        await page.keyboard.press("Enter")
        await expect(details.get_by_role("heading")).to_have_text("Rank 0")
        await page.locator("[data-contents=events]").click()
        before = await page.locator("[data-range]").inner_text()
        await page.locator("[data-timeline]").focus()
        for key in ("n", "Enter"):
            await page.keyboard.press(key)
        await expect(page.locator("[data-range]")).not_to_have_text(before)
        event = page.locator("[data-event].found")
        await expect(event).to_contain_text("round 7 failed")
        await page.wait_for_url("**section=events&rank=0&event=*&from=*&to=*")
        zoomed = await page.locator("[data-range]").inner_text()
        there = await page.evaluate("scrollY")
        assert there > 0

        async def is_all_there() -> None:
            await expect(details.get_by_role("heading")).to_have_text("Rank 0")
            await expect(event).to_contain_text("round 7 failed")
            await expect(page.locator("[data-range]")).to_have_text(zoomed)
            await page.wait_for_function(f"Math.abs(scrollY - {there}) < 3")

        await is_all_there()
        await page.reload()
        await is_all_there()
        await page.keyboard.press("u")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
        await page.go_back()
        await is_all_there()
        link = page.url
        await page.go_back()
        await expect(event).to_have_count(0)
        other = await visit.context.new_page()
        await other.goto(link)
        await expect(other.locator("[data-event].found")).to_be_in_viewport()


async def test_events_say_for_how_many_they_stand_and_times_are_of_the_chosen_zone(
    browser: Browser,
) -> None:
    async with (
        serving({"r": ShownRun(played("run 2"), counts={1: 1_100})}) as origin,
        browser.visit(f"{origin}/runs/r", timezone_id="Asia/Kolkata") as visit,
    ):
        page = visit.page
        row = page.locator("[data-event='1']")
        await expect(row).to_contain_text("agent admitted \u00d7 1\u202f100")
        local = await row.locator("time").inner_text()
        await page.keyboard.press("z")
        await expect(row.locator("time")).not_to_have_text(local)
        assert await row.locator("time").get_attribute("datetime") is not None
