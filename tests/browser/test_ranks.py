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

pytestmark = [needs_chromium, pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


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
        await details.get_by_role("button", name="Show its stacks").click()
        await expect(details.locator("[data-ranks=stacks]")).to_contain_text("steady")
        await visit.page.keyboard.press("Escape")
