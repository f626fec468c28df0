"""Whole blocks: who is seated, who stands by and why, and what a round waits for."""

from __future__ import annotations

import pytest

from drumbeat.coordinator.core.membership.admission import spec_error
from drumbeat.coordinator.core.policy import Policy
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
