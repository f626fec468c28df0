"""A run at a glance: which workers are shown, and how often the agents are passed for it."""

from __future__ import annotations

import asyncio
import math
import random

from drumbeat.coordinator.core.model import HostMemory, WorkerMemory
from drumbeat.coordinator.observe.overview import GROWING_MAX, ROWS_MAX, Glimpse, Overview
from drumbeat.coordinator.observe.overviews import ANSWER_S, Overviews
from drumbeat.coordinator.observe.shared_reading import FRESH_LEAST_S, SHARE
from drumbeat.coordinator.observe.worker_progress import (
    BEHIND_SHOWN_MAX,
    Standing,
    WorkerProgress,
    furthest_behind,
)
from drumbeat.coordinator.wire.run_status import EVENTS_IN_OVERVIEW, glimpses
from drumbeat.mapping import seconds_of
from drumbeat.v1 import query_pb2
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


def of(story: Story, overviews: Overviews, **asked: bool) -> query_pb2.GetOverviewResponse:
    get = overviews.get(story.state(), story.run(), is_repeated=False, **asked)
    return asyncio.run(get)


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


def reference(found: list[Standing]) -> str:
    """Name who is behind as the rule says it, with everything at hand."""
    steps = [each.progress.steps for each in found]
    counted = [step for step in steps if math.isfinite(step)] or steps
    scopes = [each.progress.scope for each in found]
    common = next((s for s in scopes if s and 2 * scopes.count(s) > len(scopes)), "")
    if min(steps, default=0) < max(counted, default=0):
        behind, where = [each for each in found if each.progress.steps == min(steps)], ""
    elif common:
        behind = [each for each in found if each.progress.scope != common]
        where = f", not in {common!r} as the others"
    else:
        return ""
    if not behind or len(behind) > BEHIND_SHOWN_MAX or 2 * len(behind) >= len(found) > 2:
        return ""
    return ", ".join(map(str, behind)) + where


def test_who_is_behind_is_found_as_the_rule_says() -> None:
    for seed in range(300):
        found = a_random_run(seed)
        assert furthest_behind(found) == reference(found), seed


def a_random_run(seed: int) -> list[Standing]:
    chance = random.Random(seed)
    odd: list[int | None] = [None, 6, 8]
    steps = odd[: chance.randrange(4)] + [7] * chance.choice([1, 5, 40])
    scopes = ["reduce"] * chance.choice([1, 20]) + ["load", ""]
    found = list[Standing]()
    for index in range(chance.randrange(12)):
        workers = [
            WorkerProgress(
                local_rank=i,
                step=chance.choice(steps),
                heartbeat_age_s=chance.choice([None, 1.0, 1.0]),
                scope=chance.choice(scopes),
            )
            for i in range(4)
        ]
        found += [
            Standing(rank=4 * index + i, host=f"h{index}", progress=w)
            for i, w in enumerate(workers)
        ]
    return found


def test_an_overview_has_the_run_the_workers_shown_and_the_latest_events() -> None:
    story = a_running_story(3, 3, restarts_max=9)
    story.now += 2.0
    for name, step in (("a", 5), ("b", 3), ("c", 5)):
        story.beat(name, workers=(worker(0, step),))
    found = of(story, Overviews(lambda: story.now))
    assert (found.run.run_id, found.run.round.world_size) == ("run", 3)
    assert found.behind == "", "it may be so of the instants at which hosts were heard alone"
    assert seconds_of(found.heartbeat_age) == 1.0
    assert [[each.step for each in agent.workers] for agent in found.agents] == [[5], [3], [5]]
    assert (found.rows_count, len(found.events)) == (3, min(EVENTS_IN_OVERVIEW, 4))


def test_an_overview_of_a_run_that_has_ended_shows_no_workers() -> None:
    story = a_running_story(2)
    for name in ("a", "b"):
        story.succeed(name)
    found = of(story, Overviews(lambda: story.now))
    assert found.run.phase == query_pb2.RUN_PHASE_ENDED
    assert not any(agent.workers for agent in found.agents)


def test_workers_that_say_nothing_are_shown_with_their_local_ranks() -> None:
    story = a_story(1)
    story.join("a", local_world_size=3)
    story.obey_all()
    (found,) = of(story, Overviews(lambda: story.now)).agents
    assert [each.local_rank for each in found.workers] == [0, 1, 2]


async def test_the_others_have_their_turn_after_so_many_workers() -> None:
    story, turns = a_running_story(40), 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    overviews = Overviews(lambda: story.now, rows_per_turn=4)
    await overviews.get(story.state(), story.run(), is_repeated=False)
    beside.cancel()
    assert turns >= 10


async def test_a_round_that_begins_on_the_way_has_the_agents_passed_again() -> None:
    story = a_running_story(6, restarts_max=1)

    async def restart() -> None:
        story.fail("c")
        story.live()

    beside = asyncio.create_task(restart())
    overviews = Overviews(lambda: story.now, rows_per_turn=2)
    found = await overviews.get(story.state(), story.run(), is_repeated=False)
    await beside
    assert found.run.round_id == 1
    assert len(found.agents) == found.rows_count == 6
    assert all(agent.HasField("seat") for agent in found.agents)


async def test_those_who_ask_again_and_again_share_an_overview_until_it_is_old() -> None:
    story = a_running_story(1)
    now, overviews = 100.0, Overviews(lambda: now)

    async def step(*, is_repeated: bool = True) -> tuple[int, float]:
        found = await overviews.get(story.state(), story.run(), is_repeated=is_repeated)
        return found.agents[0].workers[0].step, seconds_of(found.fresh_for)

    def train(step: int) -> None:
        story.beat("a", workers=(worker(0, step),))

    train(1)
    assert await step() == (1, FRESH_LEAST_S)
    train(2)
    now += FRESH_LEAST_S / 2
    assert await step() == (1, FRESH_LEAST_S / 2)
    assert await step(is_repeated=False) == (2, FRESH_LEAST_S), "who asks once has it new"
    train(3)
    now += FRESH_LEAST_S
    assert await step() == (3, FRESH_LEAST_S)


async def test_the_end_of_a_run_is_told_though_an_overview_from_before_is_new() -> None:
    story = a_running_story(1)
    overviews, phases = Overviews(lambda: story.now), list[int]()

    async def look() -> None:
        found = await overviews.get(story.state(), story.run(), is_repeated=True)
        phases.append(found.run.phase)

    await look()
    story.succeed("a")
    await look()
    assert phases == [query_pb2.RUN_PHASE_RUNNING, query_pb2.RUN_PHASE_ENDED]


async def test_the_more_watch_the_less_often_each_of_them_is_given_something_new() -> None:
    story = a_running_story(1)
    overviews, waits = Overviews(lambda: story.now), list[float]()
    for _ in range(100):
        found = await overviews.get(story.state(), story.run(), is_repeated=True)
        waits.append(seconds_of(found.fresh_for))
    assert waits == sorted(waits)
    assert waits[0] == FRESH_LEAST_S
    assert waits[-1] >= 100 * ANSWER_S / SHARE


async def test_all_who_ask_at_once_are_given_the_same_overview() -> None:
    story, passes = a_running_story(8), 0
    run = story.run()
    assert run is not None
    is_present = run.members.is_present

    def counted(incarnation: str) -> bool:
        nonlocal passes
        passes += incarnation == "a.1"
        return is_present(incarnation)

    run.members.is_present = counted  # type: ignore[method-assign]
    overviews = Overviews(lambda: story.now, rows_per_turn=2)
    gets = [overviews.get(story.state(), run, is_repeated=bool(i % 2)) for i in range(50)]
    assert {found.rows_count for found in await asyncio.gather(*gets)} == {8}
    assert passes == 1


def test_agents_that_leave_while_they_are_passed_are_left_out() -> None:
    story = a_running_story(4)
    seen = []
    for each in glimpses(story.state(), story.run()):
        seen.append(each.name)
        if each.name == "a":
            story.leave("c")
    assert seen == ["a", "b", "d"]
