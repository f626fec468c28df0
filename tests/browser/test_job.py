"""A job of replica groups in a browser: one line in the list, a timeline for each group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from tests.support.browser import needs_chromium
from tests.support.cluster import Cluster
from tests.support.stage import WORKER

if TYPE_CHECKING:
    from tests.support.browser import Browser
    from tests.support.stage import Stage

pytestmark = [needs_chromium, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


async def test_a_job_is_one_line_that_leads_to_its_groups(browser: Browser, stage: Stage) -> None:
    with Cluster() as cluster:
        agents = [
            cluster.agent(
                *("--name", f"node{index}", "--replica-group", f"{index}/2"),
                *(WORKER, str(cluster.directory), "even"),
                coordinator=stage.coordinator,
                run_id="ft",
            )
            for index in range(2)
        ]
        for agent in agents:
            agent.wait_for_line("rank 0 trains at step")
        async with browser.visit(stage.link()) as visit:
            page = visit.page
            line = page.locator("[data-run='ft']")
            await expect(line).to_contain_text("2 groups: 2 running")
            await expect(page.locator("[data-run='ft.0']")).to_have_count(0)
            await line.get_by_role("link").click()
            job = page.locator("[data-view=job]")
            await expect(job).to_contain_text("at least 1 needed")
            groups = job.locator("tbody tr")
            await expect(groups).to_have_count(2)
            for index in range(2):
                await expect(groups.nth(index).locator("[data-part=training]").last).to_be_visible()
            await groups.nth(1).get_by_role("link").click()
            await expect(page.locator("[data-section=headline]")).to_contain_text("ft.1")
