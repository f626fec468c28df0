"""What the page makes of the columns of ranks, for rounds larger than a test can run."""

import asyncio
import json
from typing import Any

import pytest

from drumbeat.coordinator.observe.ranks import make_grid
from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress
from tests.support.browser import Browser, needs_chromium
from tests.support.stage import TRAINING, Stage
from tests.support.turns import made
from tests.support.world import Story, a_story

pytestmark = [needs_chromium, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

HOSTS, WORKERS, STEP_S = 60, 8, 0.1
READ = """async (whole) => {
  const { Ranks } = await import("/ranks/columns.js");
  const ranks = new Ranks(whole);
  const { rows, ranksCount } = ranks.worst(5, new Set([9]));
  const rank = ranks.size > 99 ? ranks.of(99) : null;
  return { size: ranks.size, lag: [...ranks.lag], rank, rows, ranksCount };
}"""


def beat(story: Story, host: int, steps: list[int], age_s: float = 0.05) -> None:
    workers = [
        WorkerProgress(
            local_rank=i,
            step=step,
            step_time_s=STEP_S,
            heartbeat_age_s=age_s,
            progress_age_s=age_s,
        )
        for i, step in enumerate(steps)
    ]
    story.beat(f"host-{host}", workers=tuple(workers))


async def judged(browser: Browser, stage: Stage, story: Story) -> dict[str, Any]:
    """Return what the page makes of the ranks of a story."""
    grid, _ = made(make_grid(story.state(), story.run(), now=story.now))
    async with browser.visit(stage.link(TRAINING)) as visit:
        found: dict[str, Any] = await visit.page.evaluate(READ, json.loads(grid.whole))
    return found


async def test_the_page_shows_as_behind_whom_the_coordinator_judges_to_be(
    browser: Browser, stage: Stage
) -> None:
    story = a_story(HOSTS)
    for host in range(HOSTS):
        story.join(f"host-{host}", local_world_size=WORKERS)
    story.obey_all()
    began = story.now
    # Hosts say where they are one after the other, over half a second: five steps.
    for host in range(HOSTS):
        story.now = began + 0.5 * host / HOSTS
        step = 1_000 + int((story.now - began) / STEP_S)
        beat(story, host, [step + 2 * (host == 50)] * WORKERS)
    found = await asyncio.wait_for(judged(browser, stage, story), 30)
    assert set(found["lag"]) == {0}
    assert [(row["rank"], row["count"]) for row in found["rows"]] == [(9, 1)], "the straggler"
    # All have made no step for long, and one of them one less.
    for host in range(HOSTS):
        steps = [1_010] * WORKERS
        if host == 12:
            steps[3] -= 1
        beat(story, host, steps, 30.0)
    found = await asyncio.wait_for(judged(browser, stage, story), 30)
    assert found["size"] == HOSTS * WORKERS
    assert [rank for rank, lag in enumerate(found["lag"]) if lag] == [99]
    assert (found["rank"]["name"], found["rank"]["localRank"]) == ("host-12", 3)
    assert (found["rank"]["step"], found["rank"]["lag"]) == (1_009, 1)
    assert [row["rank"] for row in found["rows"]][:1] == [99], "before those that are silent"


async def test_the_ranks_of_a_host_stand_out_together(browser: Browser, stage: Stage) -> None:
    story = a_story(3)
    for host in range(3):
        story.join(f"host-{host}", local_world_size=WORKERS)
    story.obey_all()
    story.break_session("host-1")
    found = await asyncio.wait_for(judged(browser, stage, story), 30)
    assert [(row["rank"], row["count"]) for row in found["rows"]][:1] == [(8, 8)]
