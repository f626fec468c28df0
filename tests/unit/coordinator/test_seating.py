"""Whole blocks: who is seated, who stands by and why, and what a round waits for."""

from functools import partial

import pytest

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import DrainAsked
from drumbeat.coordinator.core.membership.admission import spec_error
from drumbeat.coordinator.core.policy import Policy
from drumbeat.model import GroupState, Health, HealthState
from tests.support.call_counts import calls_of
from tests.support.operator import ask
from tests.support.world import Story, a_spec

BLOCKS = {"block_label": "rack", "block_size": 2}


def a_story(agents_min: int, agents_max: int, **fields: float) -> Story:
    how = {"last_call_s": 0.0, "join_timeout_s": 60.0} | fields
    return Story(spec=a_spec(agents_min, agents_max, **BLOCKS, **how), is_lively=True)


def test_a_round_waits_for_whole_blocks_and_says_for_which() -> None:
    story = a_story(4, 4)
    for name, block in (("a", "r1"), ("b", "r2"), ("c", "r1"), ("d", "r3")):
        story.join(name, block=block)
    waits = "2 of 4 agents, block r2 waits for 1, block r3 waits for 1"
    story.advance(story.policy.progress_interval_s)
    assert story.standby("a").reason == waits
    assert story.standby("a").agents_wanted == 2
    story.join("e", block="r3")
    assert story.ranks() == ["a", "c", "d", "e"]
    alone = "round 0 runs on 4 agents; this one stands by: block r2 waits for 1 of 2 agents"
    assert story.standby("b").reason == alone


def test_a_block_that_lost_a_host_leaves_whole_and_comes_back_whole() -> None:
    story = a_story(2, 4, last_call_s=0.0)
    for name, block in (("a", "r1"), ("b", "r1")):
        story.join(name, block=block)
    story.join("c", block="r2")
    assert story.ranks() == ["a", "b"]
    story.join("d", block="r2")
    story.advance(1.0)
    assert story.ranks() == ["a", "b", "c", "d"]
    story.leave("a")
    story.advance(1.0)
    assert story.ranks() == ["c", "d"]
    assert story.standby("b").reason.endswith("block r1 waits for 1 of 2 agents")
    story.join("x", block="r1")
    story.advance(1.0)
    assert sorted(story.ranks()) == ["b", "c", "d", "x"]


def test_more_agents_of_a_seated_block_end_no_round() -> None:
    story = a_story(2, 8)
    for name in "abcdef":
        story.join(name, block="r1")
        story.advance(1.0)
    assert story.ranks() == ["a", "b"]
    assert story.state().round_id == 0
    assert story.standby("f").reason.endswith("block r1 has its agents")


def test_too_few_whole_blocks_end_the_run_and_the_reason_names_what_lacks() -> None:
    story = a_story(2, 2)
    story.join("a", block="r1")
    story.advance(61.0)
    assert "block r1 waits for 1" in story.verdict("a").reason


@pytest.mark.parametrize(("least", "most", "field"), [(3, 4, "agents_min"), (2, 3, "agents_max")])
def test_numbers_that_no_whole_blocks_make_are_refused(least: int, most: int, field: str) -> None:
    error = spec_error(a_spec(least, most, **BLOCKS), Policy())
    assert error is not None
    assert field in str(error)
    assert "a multiple of block_size (2)" in str(error)


def health(state: HealthState, reason: str = "") -> dict[str, Health]:
    return {"health": Health(state=state, reason=reason)}


CHECKING, UNHEALTHY = health(HealthState.CHECKING), health(HealthState.UNHEALTHY, "hot")
HEALTHY = health(HealthState.HEALTHY)


def test_a_block_waits_for_a_host_that_is_checked() -> None:
    story = a_story(2, 4, last_call_s=5.0, restarts_max=9)
    for name, block in (("a", "r1"), ("b", "r1"), ("c", "r2"), ("d", "r2")):
        story.join(name, block=block)
    story.beat("d", more=CHECKING)
    story.fail("a")
    reason = "2 agents are enough, but d checks its health, block r2 waits for 1"
    assert story.run().reason(story.now) == reason
    story.beat("d", more=HEALTHY)
    assert story.ranks() == ["a", "b", "c", "d"]


def test_an_unhealthy_host_makes_its_block_incomplete() -> None:
    story = a_story(2, 4, last_call_s=5.0, restarts_max=9)
    for name, block in (("a", "r1"), ("b", "r1"), ("c", "r2"), ("d", "r2")):
        story.join(name, block=block)
    story.beat("d", more=UNHEALTHY)
    story.fail("a")
    story.advance(1.0)
    assert story.ranks() == ["a", "b"]
    assert story.standby("c").reason.endswith("block r2 waits for 1 of 2 agents")
    assert story.standby("d").reason == "unhealthy: hot"
    story.beat("d", more=HEALTHY)
    story.advance(5.0)
    assert story.ranks() == ["a", "b", "c", "d"]


def test_a_spare_of_the_block_takes_the_place_of_an_unhealthy_host() -> None:
    story = a_story(2, 2, restarts_max=9)
    for name in "abc":
        story.join(name, block="r1")
    story.beat("a", more=UNHEALTHY)
    story.fail("b")
    story.advance(1.0)
    assert sorted(story.ranks()) == ["b", "c"]


def test_a_block_comes_back_whole_while_another_is_incomplete() -> None:
    story = a_story(2, 6)
    for number, name in enumerate("abcdef"):
        story.join(name, block=f"r{number // 2}")
    story.advance(1.0)
    story.leave("a")
    story.leave("c")
    story.advance(1.0)
    assert story.ranks() == ["e", "f"]
    story.join("x", block="r0")
    story.advance(1.0)
    assert sorted(story.ranks()) == ["b", "e", "f", "x"]
    assert story.standby("d").reason.endswith("block r1 waits for 1 of 2 agents")


def test_a_maximum_below_all_blocks_leaves_whole_blocks_standing_by() -> None:
    story = a_story(2, 4)
    for number in range(8):
        story.join(f"h{number}", block=f"r{number % 4}")
    story.advance(1.0)
    seats = [seat.agent.block for seat in story.state().seats.values()]
    assert len(seats) == 4
    assert len(set(seats)) == 2


def test_agents_of_one_name_in_two_blocks_are_told_apart() -> None:
    story = a_story(4, 4)
    for block, key in (("r1", "a"), ("r2", "b"), ("r1", "c"), ("r2", "d")):
        story.join(key, block=block, name=f"host-{block}")
    names = [seat.agent.name for seat in story.state().seats.values()]
    assert len(names) == len(set(names)) == 4


def test_an_arrival_costs_the_same_at_any_size() -> None:
    story = Story(spec=a_spec(1000, 2000, **BLOCKS))
    calls = []
    for number in range(400):
        join = partial(story.join, f"h{number}", block=f"r{number % 200}")
        calls.append(calls_of(join))
    assert calls[0] > 50
    assert calls[399] < 2 * calls[0]


def a_story_of_two() -> Story:
    """Two hosts run, one of which is enough."""
    how = {"last_call_s": 0.0, "join_timeout_s": 60.0, "restarts_max": 9, "shutdown_timeout_s": 5.0}
    story = Story(spec=a_spec(1, 2, **how), is_lively=True)
    for name in ("a", "b"):
        story.join(name)
    story.is_lively = False
    assert story.ranks() == ["a", "b"]
    return story


@pytest.mark.parametrize("ends", [True, False])
def test_a_round_waits_until_the_workers_of_a_host_without_a_seat_have_ended(ends: bool) -> None:
    story = a_story_of_two()
    story.beat("a", GroupState.FAILED, workers_alive=1, more=UNHEALTHY)  # rank 0 trains on
    story.obey("b")
    reason = "waiting for the workers of a to end"
    assert story.run().reason(story.now) == story.standby("b").reason == reason
    if ends:
        story.beat("a", workers_alive=0)
    else:
        story.advance(story.spec.shutdown_timeout_s + story.policy.report_wait_s)
    assert story.ranks() == ["b"]
    assert story.assignment("b").rank_first == 0


def test_a_host_that_is_healthy_by_then_has_its_seat_again() -> None:
    story = a_story_of_two()
    story.beat("a", GroupState.FAILED, workers_alive=1, more=CHECKING)
    story.obey("b")
    story.advance(2.0)
    assert story.run().reason(story.now) == "waiting for the workers of a to end"
    story.beat("a", more=HEALTHY)
    assert story.ranks() == ["a", "b"]
    assert story.assignment("a").round_id > 1


@pytest.mark.parametrize("ends", ["workers", "agent", "time", ""])
def test_a_round_waits_for_the_workers_of_an_agent_that_has_left(ends: str) -> None:
    story = a_story_of_two()
    story.say_goodbye("a")  # rank 0 ignores SIGTERM
    story.obey("b")
    assert story.run().reason(story.now) == "waiting for the workers of a to end"
    story.beat("a")
    assert story.of(fx.Reject) == [], "it could not tell that they have ended"
    match ends:
        case "workers":
            story.beat("a", workers_alive=0)
            assert story.ranks() == ["b"]
            story.beat("a")
            assert story.of(fx.Reject) == []
        case "agent":
            story.break_session("a")
            assert story.ranks() == ["b"]
        case "time":
            story.advance(story.spec.shutdown_timeout_s + story.policy.report_wait_s)
            assert story.ranks() == ["b"]
        case _:
            assert story.ranks() == ["a", "b"]


def test_a_drained_agent_whose_session_breaks_while_it_stops_its_workers_is_waited_for() -> None:
    story = a_story_of_two()
    ask(story, DrainAsked, name="a")
    story.back("a")
    story.break_session("b")
    story.back("b")
    story.obey("b")
    assert story.run().reason(story.now) == "waiting for the workers of a to end"
    story.obey("a")
    assert story.ranks() == ["b"]
