"""Ranks, their step times and their hosts in a browser."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from tests.support.browser import needs_chromium
from tests.support.stage import TRAINING

if TYPE_CHECKING:
    from tests.support.browser import Browser
    from tests.support.stage import Stage

pytestmark = [needs_chromium, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


async def test_a_rank_is_chosen_in_the_grid_and_shows_where_it_is(
    browser: Browser, stage: Stage
) -> None:
    async with browser.visit(stage.link(TRAINING)) as visit:
        grid = visit.page.locator("[data-section=grid]")
        canvas, details = grid.get_by_role("application"), grid.locator("[data-ranks=details]")
        legend = grid.locator("[data-ranks=legend]")
        await expect(grid.locator("[data-ranks=summary]")).to_contain_text("4 ranks")
        await expect(legend).to_contain_text("running")
        # In each mode what a colour means is written, with how many have it.
        painted = set()
        for mode in ("Step lag", "Silence", "State"):
            await grid.get_by_role("button", name=mode).click()
            painted.add(await legend.inner_text())
        assert len(painted) == 3

        await canvas.click(position={"x": 12, "y": 30})
        await expect(details.get_by_role("heading")).to_have_text("Rank 0")
        await canvas.focus()
        await visit.page.keyboard.press("End")
        await visit.page.keyboard.press("Enter")
        await expect(details.get_by_role("heading")).to_have_text("Rank 3")
        await expect(details).to_contain_text("gpu1")
        await expect(details).to_contain_text("forward and backward")
        pids = stage.agents["gpu1"].worker_pids()
        await expect(details.locator("[data-fact=pid] dd")).to_have_text(
            re.compile("|".join(map(str, pids)))
        )
        memory = details.locator("[data-fact=memory] dd")
        await expect(memory).to_have_text(re.compile("[0-9] [GM]iB.*; (host|cgroup) at .* of "))
        await details.get_by_role("button", name="Show its stacks").click()
        await expect(details.locator("[data-ranks=stacks]")).to_contain_text("steady")
        await visit.page.keyboard.press("Escape")


async def test_the_slow_rank_is_named_and_its_steps_are_drawn(
    browser: Browser, stage: Stage
) -> None:
    async with browser.visit(stage.link(TRAINING)) as visit:
        steps = visit.page.locator("[data-section=step-times]")
        await steps.scroll_into_view_if_needed()
        named = steps.locator("[data-step-times=stragglers]")
        await expect(named).to_contain_text("Straggler: rank 3 on gpu1")
        await named.scroll_into_view_if_needed()  # what is above it has grown meanwhile
        slow = steps.get_by_role("row").filter(has_text="gpu1 straggler")
        await expect(slow.get_by_role("button", name="3")).to_be_visible()
        await expect(visit.page.locator("[data-kind=straggler_found]").last).to_contain_text(
            "rank 3"
        )
        await steps.locator("[data-step-times=canvas]").hover()
        await expect(steps.get_by_text(re.compile(r"^median +\d+ms$"))).to_be_visible()
        await slow.get_by_role("button", name="3").click()
        chosen = visit.page.locator("[data-ranks=details]").get_by_role("heading")
        await expect(chosen).to_have_text("Rank 3")


async def test_hosts_are_listed_and_lead_to_their_ranks(browser: Browser, stage: Stage) -> None:
    async with browser.visit(stage.link(TRAINING)) as visit:
        page, hosts = visit.page, visit.page.locator("[data-section=hosts]")
        rows = hosts.locator("[data-host]")
        await expect(rows).to_have_count(2)
        await expect(rows.first).to_contain_text("gpu0")
        await expect(rows.first).to_contain_text("running")
        await hosts.get_by_role("searchbox").fill("gpu1")
        await expect(rows).to_have_count(1)
        await rows.get_by_role("button", name="Drain gpu1").click()
        dialog = page.get_by_role("dialog")
        await expect(dialog.get_by_label(re.compile("^Name"))).to_have_value("gpu1")
        await page.keyboard.press("Escape")
        await expect(dialog).to_have_count(0)
        await rows.get_by_role("button", name=re.compile("^2.3$")).click()
        chosen = page.locator("[data-ranks=details]").get_by_role("heading")
        await expect(chosen).to_have_text("Rank 2")
