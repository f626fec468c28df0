"""axe-core finds nothing wrong with any view: light and dark, narrow and wide."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Literal

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import expect

from drumbeat.v1 import common_pb2, control_pb2, session_pb2
from tests.support.browser import needs_chromium
from tests.support.health_stories import STORIES
from tests.support.pages import site
from tests.support.shown_runs import ShownRuns, last_failure
from tests.support.stage import FAILED, HOSTILE, TRAINING
from tests.support.story_page import ShownRun, serving
from tests.support.troubled_site import troubled_site
from tests.support.wire import Client, spec

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.async_api import Page

    from tests.support.browser import Browser
    from tests.support.stage import Stage

pytestmark = [needs_chromium, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
WIDTHS = (390, 820, 1400)


async def problems(page: Page, view: str) -> list[str]:
    """Return what is wrong with a page in every look."""
    found = []
    for scheme, width in product(SCHEMES, WIDTHS):
        await page.emulate_media(color_scheme=scheme)
        await page.set_viewport_size({"width": width, "height": 900})
        await expect(page.locator("html")).to_have_attribute("data-theme", scheme)
        for rule in (await Axe().run(page)).response["violations"]:
            nodes = [f"{node['html'][:120]} ({node['failureSummary']})" for node in rule["nodes"]]
            found.append(f"{view}, {scheme}, {width}: {rule['id']}: {rule['help']}: {nodes[:3]}")
    return found


async def test_the_list_of_runs(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(tmp_path, insecure=True) as made:
        shown = ShownRuns(made.driver, monkeypatch)
        healths = ("healthy", "degraded", "crash_loop", "no_progress", "hanging", "waiting")
        for at in range(60):
            failure = last_failure("worker failed", 60.0 * at)
            more = {"labels": {"owner": "anna"}, "step": at, "last_failure": failure}
            shown.show(f"run-{at}", healths[at % 6], "round 7 for 1 min", **more)
        for generation, health in enumerate(("failed", "stopped", "succeeded"), start=1):
            more = {"generation": generation, "ended_age": 9.0}
            shown.show("ended", health, "it is over", **more)
        async with browser.visit(f"{made.origin}?compare=run-1:1&compare=run-2:1&sort=-step") as v:
            await expect(v.page.locator("[data-runs] tbody tr")).to_have_count(50)
            await expect(v.page.locator("[data-comparison] tbody tr")).not_to_have_count(0)
            assert await problems(v.page, "list") == []
        made.driver.journal.runs.states.clear()


@pytest.mark.parametrize("run_id", [TRAINING, FAILED, HOSTILE])
async def test_a_run(browser: Browser, stage: Stage, run_id: str) -> None:
    async with browser.visit(stage.link(run_id)) as visit:
        await expect(visit.page.locator("[data-part=training]").first).to_be_attached()
        await expect(visit.page.locator("[data-event]").first).to_be_attached()
        assert await problems(visit.page, run_id) == []


async def test_a_host(browser: Browser, tmp_path: Path) -> None:
    async with site(tmp_path, insecure=True) as made, Client(made.port) as client:
        agent = client.agent(host="gpu7")
        await agent.join()
        await agent.run()
        use = session_pb2.GpuUse(utilization=[0.5], memory_used_bytes=[1], memory_bytes=[2**30])
        use.power_watts.append(300.0)
        agent.beat.gpus.CopyFrom(use)
        await agent.say(session_pb2.GROUP_STATE_RUNNING)
        await client.control.DrainAgent(control_pb2.DrainAgentRequest(name="gpu7", run_id="other"))
        async with browser.visit(f"{made.origin}/hosts/gpu7") as visit:
            await expect(visit.page.locator("[data-drain]")).to_contain_text("Drained from other")
            await expect(visit.page.locator("[data-agent=gpu7]")).to_contain_text("50.0%")
            await expect(visit.page.locator("[data-run=run]")).to_be_attached()
            assert await problems(visit.page, "host") == []


@pytest.mark.parametrize("name", STORIES)
async def test_a_run_of_each_health(browser: Browser, name: str) -> None:
    async with (
        serving({name: ShownRun(STORIES[name]())}) as origin,
        browser.visit(f"{origin}/runs/{name}") as visit,
    ):
        await expect(visit.page.locator("[data-part]").first).to_be_attached()
        await expect(visit.page.locator("[data-event]").first).to_be_attached()
        assert await problems(visit.page, name) == []


async def test_notifications(browser: Browser, tmp_path: Path) -> None:
    async with (
        troubled_site(tmp_path) as origin,
        browser.visit(f"{origin}/notifications") as visit,
    ):
        await visit.page.locator("[data-audit] summary").click()
        for part in ("firing", "outside", "sent", "audit"):
            await expect(visit.page.locator(f"[data-{part}] tbody tr").first).to_be_visible()
        assert await problems(visit.page, "notifications") == []


async def test_no_run(browser: Browser) -> None:
    async with (
        serving({"mt5": ShownRun(STORIES["healthy"]())}) as origin,
        browser.visit(f"{origin}/runs/mt6", "404") as visit,
    ):
        await expect(visit.page.get_by_role("link", name="mt5")).to_be_visible()
        assert await problems(visit.page, "no run") == []


async def test_a_job(browser: Browser, tmp_path: Path) -> None:
    async with site(tmp_path, insecure=True) as made, Client(made.port) as client:
        for index in range(2):
            of_group = spec()
            group = common_pb2.ReplicaGroup(job="ft", index=index, count=2, groups_min=1)
            of_group.replica_group.CopyFrom(group)
            await client.agent(run_id=f"ft.{index}", spec=of_group).join()
        async with browser.visit(f"{made.origin}/runs/ft?job=1") as visit:
            await expect(visit.page.locator(".groups tbody tr")).to_have_count(2)
            assert await problems(visit.page, "job") == []


@pytest.mark.parametrize(
    ("path", "title"), [("/foo", "There is no such page"), ("/", "Open this page by a link")]
)
async def test_notices_and_the_entry(browser: Browser, stage: Stage, path: str, title: str) -> None:
    origin, _, code = stage.link().partition("/#")
    async with browser.visit(f"{origin}{path}{f'#{code}' if path != '/' else ''}", "40[14]") as v:
        await expect(v.page.get_by_role("heading", level=1)).to_have_text(title)
        assert await problems(v.page, title) == []
