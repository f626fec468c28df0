"""The ranks of a run over HTTP, live too, and its hosts from any place on."""

import asyncio
import json
from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from drumbeat.coordinator.core.events import BeatReceived, SessionOpened
from drumbeat.coordinator.core.model import Beat
from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress
from drumbeat.model import GroupState
from tests.support.pages import Browser, Site, site
from tests.support.waiting import MS, wait_until
from tests.support.world import a_spec, an_agent


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Site]:
    async with site(tmp_path, insecure=True) as made:
        yield made


def opened(name: str, **more: Any) -> SessionOpened:
    return SessionOpened(
        **more,
        run_id="run",
        spec=a_spec(2),
        session_id=f"s-{name}",
        agent=an_agent(name, local_world_size=2),
        beat=Beat(state=GroupState.IDLE, master_port=20_000),
    )


def beat(name: str, step: int) -> BeatReceived:
    workers = tuple(WorkerProgress(local_rank=i, step=step, heartbeat_age_s=0.1) for i in (0, 1))
    running = Beat(state=GroupState.RUNNING, round_id=0, workers=workers, workers_alive=2)
    return BeatReceived(run_id="run", session_id=f"s-{name}", incarnation=f"{name}.1", beat=running)


async def live_ranks(browser: Browser) -> AsyncGenerator[dict[str, Any], None]:
    """Yield what the live stream tells of ranks."""
    async with browser.open("GET", "/api/runs/run/live") as stream:
        kind = ""
        async for line in stream.content:
            if line.startswith(b"event: "):
                kind = line[7:].decode().strip()
            elif line.startswith(b"data: ") and kind == "ranks":
                yield json.loads(line[6:])


async def test_the_whole_is_read_once_and_what_changes_comes_by_itself(served: Site) -> None:
    for name in "ab":
        served.driver.open(opened(name))
    browser = served.browser()
    async with asyncio.timeout(20):
        await wait_until(lambda: "run" in served.driver.journal.runs.states, 10_000 * MS)
        live = live_ranks(browser)
        async for columns in live:
            if columns["round_id"] == 0:
                break
        whole = (await browser.get("/api/runs/run/ranks")).json
        assert whole["names"] == ["a", "b"]
        assert len(b64decode(whole["lag"])) == 8
        for name, step in (("a", 7), ("b", 5)):
            served.driver.submit(beat(name, step))
        async for columns in live:
            if columns["furthest_step"] == 7:
                break
        assert "names" not in columns
        assert b64decode(columns["lag"]) == bytes([0, 0, 0, 0, 2, 0, 2, 0])
        await live.aclose()


async def test_hosts_are_listed_from_a_place_on_with_what_they_have(served: Site) -> None:
    for name in ("a", "b", "spare"):
        served.driver.open(opened(name, devices="8 NVIDIA H200", labels={"rack": "b7"}))
    await wait_until(lambda: "run" in served.driver.journal.runs.states, 10_000 * MS)
    browser = served.browser()

    async def names(query: str) -> list[str]:
        agents = (await browser.get(f"/api/runs/run/agents?{query}")).json["agents"]
        assert all(agent["devices"] == "8 NVIDIA H200" for agent in agents)
        return [agent["name"] for agent in agents]

    assert await names("") == ["a", "b", "spare"]
    assert await names("first=0&page_size=1") == ["a"]
    assert await names("first=1&page_size=1") == ["b"]
    assert await names("first=standby") == ["spare"]
    assert (await browser.get("/api/runs/run/agents?first=x")).status == 400


async def test_the_drains_that_hold_for_a_run_are_listed(served: Site) -> None:
    served.driver.open(opened("a"))
    await wait_until(lambda: "run" in served.driver.journal.runs.states, 10_000 * MS)
    browser = served.browser()
    browser.headers["X-Drumbeat-CSRF"] = (await browser.get("/api/me")).json["csrf"]
    for name, run_id in (("x", ""), ("y", "run"), ("z", "other")):
        asked = {"name": name, "run_id": run_id, "reason": "ECC errors", "call_id": f"call {name}"}
        assert (await browser.post("/api/drains", asked)).status == 200
    drains = (await browser.get("/api/runs/run/drains")).json["drains"]
    assert [(each["name"], each["run_id"], each["reason"]) for each in drains] == [
        ("x", None, "ECC errors"),
        ("y", "run", "ECC errors"),
    ]
