"""The preflight: a round before the first one, which may name hosts to leave out."""

from __future__ import annotations

from typing import Any

from drumbeat.coordinator.core.model import VerdictCause
from drumbeat.coordinator.core.run.records import RoundStarted
from drumbeat.model import GroupState, PreflightFinding
from tests.support.world import Story, a_spec


def a_story(agents_min: int = 2, agents_max: int = 3, **fields: Any) -> Story:
    given = {"preflight": "check", "preflight_timeout_s": 60.0, "last_call_s": 5.0} | fields
    story = Story(spec=a_spec(agents_min, agents_max, **given), is_lively=True)
    for name in "abc"[:agents_max]:
        story.join(name, local_world_size=2)
    assert story.assignment("a").is_preflight
    return story


def names(*ranks: int, reason: str = "slow") -> dict[str, Any]:
    return {"preflight": (PreflightFinding(ranks=ranks, reason=reason),)}


def pass_all(story: Story, hosts: str = "abc") -> None:
    for name in hosts:
        story.succeed(name)
        story.agents[name].more = {}


def test_one_that_passes_is_followed_by_training_from_restart_0() -> None:
    story = a_story()
    assert story.state().reason.startswith("preflight: ")
    pass_all(story)
    assert story.state().round_id == 1
    assert story.state().reason == "preflight passed on 3 agents"
    assert not story.assignment("a").is_preflight
    assert story.assignment("a").restart_count == 0
    pass_all(story)
    assert story.verdict("a").cause is VerdictCause.SUCCEEDED


def test_hosts_that_it_names_take_part_in_no_later_round() -> None:
    story = a_story(restarts_max=1)
    story.beat("b", more=names(3))
    pass_all(story)
    assert story.ranks() == ["a", "c"]
    assert "left out 1 of 3 agents: b (rank 3: slow)" in story.state().reason
    assert "left out by the preflight: rank 3: slow" in story.standby("b").reason
    story.fail("a")
    assert story.state().round_id == 2
    assert story.ranks() == ["a", "c"]
    story.join("d", local_world_size=2)
    story.advance(60.0)
    assert story.ranks() == ["a", "c", "d"]


def test_one_that_fails_and_names_a_host_is_not_repeated() -> None:
    story = a_story(restarts_max=0)
    story.agents["a"].more = names(5)
    story.fail("a")
    story.agents["a"].more = {}
    assert story.ranks() == ["a", "b"]
    assert story.state().restart_count == 0


def test_one_that_fails_and_names_none_is_repeated_and_charged() -> None:
    story = a_story(restarts_max=1)
    for name in "abc":
        story.fail(name)
    assert story.state().reason.startswith("round 0 (preflight) failed: ")
    assert story.assignment("a").is_preflight
    assert story.state().restart_count == 1
    pass_all(story)
    assert story.assignment("a").restart_count == 0
    assert story.assignment("a").restarts_used == 1


def test_without_restarts_left_its_failure_ends_the_run() -> None:
    story = a_story()
    for name in "abc":
        story.fail(name)
    assert "(preflight) failed" in story.verdict("a").reason


def test_one_that_takes_too_long_hangs_and_the_reason_names_who() -> None:
    story = a_story(restarts_max=1)
    story.succeed("a")
    story.advance(61.0)
    assert "round 0 (preflight) hung: b, c not done after 1 min" in story.state().reason
    assert story.state().restart_count == 1


def test_too_few_that_are_left_end_the_run() -> None:
    story = a_story()
    story.beat("b", more=names(0, 2))
    pass_all(story, "ac")
    story.succeed("b")
    verdict = story.verdict("c")
    assert verdict.cause is VerdictCause.AGENTS_MISSING
    assert "preflight left out 2 of 3 agents" in verdict.reason
    assert verdict.reason.endswith("1 is left of at least 2")


def test_ranks_that_do_not_exist_and_lines_that_are_wrong_leave_nobody_out() -> None:
    story = a_story()
    line = "drumbeat: exclude me"
    story.beat("b", more=names(6, 2**31) | names(reason=line))
    pass_all(story)
    assert story.ranks() == ["a", "b", "c"]
    assert line in story.state().reason


def test_a_coordinator_that_comes_back_repeats_no_preflight_and_keeps_who_is_out() -> None:
    story = a_story()
    story.beat("b", more=names(3))
    pass_all(story)
    story.restart()
    story.advance(1.0)
    for name in "abc":
        story.back(name)
    assert story.ranks() == ["a", "c"]
    started = story.records(RoundStarted)
    assert [each.is_preflight for each in started] == [True, False]
    assert story.state().left_out == {"b.1": "rank 3: slow"}


def test_a_lost_agent_repeats_it_without_a_charge() -> None:
    story = a_story()
    story.leave("b")
    story.advance(10.0)
    assert story.ranks() == ["a", "c"]
    assert story.assignment("a").is_preflight
    assert story.state().restart_count == 0


def test_agents_that_come_during_it_wait_for_the_first_round() -> None:
    story = a_story(2, 3)
    story.leave("c")
    story.advance(10.0)
    story.join("d", local_world_size=2)
    story.advance(10.0)
    assert story.assignment("a").is_preflight
    assert story.ranks() == ["a", "b"]
    pass_all(story, "ab")
    story.advance(10.0)
    assert len(story.ranks()) == 3
    assert story.agents["d"].state is GroupState.RUNNING
