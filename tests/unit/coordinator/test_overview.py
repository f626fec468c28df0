"""A run at a glance: which workers are shown of it."""

import random

import pytest

from drumbeat.coordinator.observe import messages
from drumbeat.coordinator.observe.messages import make_overview
from drumbeat.coordinator.observe.overview import GROWING_MAX, ROWS_MAX, Glimpse, Overview
from drumbeat.coordinator.observe.readings import Readings
from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress
from drumbeat.coordinator.wire.run_status import EVENTS_IN_OVERVIEW, glimpses
from drumbeat.model import HostMemory, WorkerMemory
from drumbeat.v1 import query_pb2
from drumbeat.wire.mapping import seconds_of
from tests.support.turns import made
from tests.support.world import Story, a_running_story, a_story


def worker(local_rank: int, step: int | None, scope: str = "") -> WorkerProgress:
    return WorkerProgress(local_rank=local_rank, step=step, heartbeat_age_s=1.0, scope=scope)


def agent(index: int, *steps: int | None, **fields: object) -> Glimpse:
    glimpse = Glimpse(
        incarnation=f"i{index}",
        name=f"h{index}",
        is_present=True,
        has_failed=False,
        heard_at=10.0,
        rank_first=index * len(steps),
        local_world_size=len(steps),
        workers=[worker(i, step) for i, step in enumerate(steps)],
    )
    return glimpse._replace(**fields)  # type: ignore[arg-type]


def overview_of(*agents: Glimpse, rows_max: int = ROWS_MAX) -> Overview:
    overview = Overview(rows_max=rows_max)
    for each in agents:
        overview.take(each)
    return overview


def of(story: Story) -> tuple[query_pb2.GetOverviewResponse, int]:
    """Return an overview, and in how many turns it was made."""
    readings = Readings(lambda: story.now)
    return made(make_overview(story.state(), story.run(), readings))


def test_the_ranks_whose_memory_grows_are_named_and_of_too_many_the_most_urgent() -> None:
    def host(used_bytes: int, *growth: int) -> HostMemory:
        workers = tuple(
            WorkerMemory(local_rank=i, resident_bytes=1, growth_bytes=each)
            for i, each in enumerate(growth)
        )
        return HostMemory(workers=workers, used_bytes=used_bytes, limit_bytes=100)

    few = overview_of(agent(0, 1, 1, memory=host(10, 0, 5)), agent(1, 1, 1, memory=host(10, 0, 0)))
    assert [(each.rank, each.left_minutes) for each in few.growing()] == [(1, 18.0)]
    agents = [agent(i, 1, memory=host(i % 90, 1)) for i in range(5 * GROWING_MAX)]
    ranks = [each.rank for each in overview_of(*agents).growing()]
    assert ranks == list(range(4 * GROWING_MAX, 5 * GROWING_MAX))


def test_of_few_workers_all_are_shown_in_order_and_standbys_behind_them() -> None:
    standby = agent(9, rank_first=None, local_world_size=4)
    overview = overview_of(agent(0, 5, 4), agent(1, 7, 1), standby)
    assert overview.chosen() == {"i0": [0, 1], "i1": [0, 1], "i9": [0]}
    assert overview.rows_count == 5


def test_of_many_those_away_come_first_then_failed_ones_then_those_behind_or_silent() -> None:
    agents = [agent(index, 100, 100) for index in range(1_000)]
    agents[700] = agent(700, 100, 100, is_present=False)
    agents[600] = agent(600, 100, 100, has_failed=True)
    agents[500] = agent(500, 100, 40)
    agents[400] = agent(400, 100, 100, heard_at=3.0)
    expected = {"i0": [0], "i400": [0, 1], "i500": [1], "i600": [0, 1], "i700": [0, 1]}
    overview = overview_of(*agents, rows_max=8)
    assert overview.chosen() == expected
    assert overview.rows_count == 2_000


def test_what_is_chosen_does_not_depend_on_the_order_in_which_surplus_is_dropped() -> None:
    chance = random.Random(7)
    agents = [agent(index, *(chance.randrange(50) for _ in range(3))) for index in range(200)]
    rows = sorted(
        (each.workers[i].step, 3 * index + i) for index, each in enumerate(agents) for i in range(3)
    )[:10]
    expected = sorted(number for _, number in rows)
    chosen = overview_of(*agents, rows_max=10).chosen()
    assert [3 * int(i[1:]) + rank for i, ranks in chosen.items() for rank in ranks] == expected


def test_an_overview_has_the_run_the_workers_shown_and_the_latest_events() -> None:
    story = a_running_story(3, 3, restarts_max=9)
    story.now += 2.0
    for name, step in (("a", 5), ("b", 3), ("c", 5)):
        story.beat(name, workers=(worker(0, step),))
    found, _ = of(story)
    assert (found.run.run_id, found.run.round.world_size) == ("run", 3)
    assert found.behind == "", "it may be so of the instants at which hosts were heard alone"
    assert seconds_of(found.heartbeat_age) == 1.0
    assert [[each.step for each in agent.workers] for agent in found.agents] == [[5], [3], [5]]
    assert (found.rows_count, len(found.events)) == (3, min(EVENTS_IN_OVERVIEW, 4))


def test_an_overview_of_a_run_that_has_ended_shows_no_workers() -> None:
    story = a_running_story(2)
    for name in ("a", "b"):
        story.succeed(name)
    found, _ = of(story)
    assert found.run.phase == query_pb2.RUN_PHASE_ENDED
    assert not any(agent.workers for agent in found.agents)


def test_workers_that_say_nothing_are_shown_with_their_local_ranks() -> None:
    story = a_story(1)
    story.join("a", local_world_size=3)
    story.obey_all()
    (found,) = of(story)[0].agents
    assert [each.local_rank for each in found.workers] == [0, 1, 2]


def test_agents_that_leave_while_they_are_passed_are_left_out() -> None:
    story = a_running_story(4)
    seen = []
    for each in glimpses(story.state(), story.run()):
        seen.append(each.name)
        if each.name == "a":
            story.leave("c")
    assert seen == ["a", "b", "d"]


def test_others_have_their_turn_after_so_many_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "ROWS_PER_TURN", 4)
    assert of(a_running_story(40))[1] >= 10
