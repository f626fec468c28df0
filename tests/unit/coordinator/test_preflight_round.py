"""The preflight: a round before the first one, which may name hosts to leave out."""

from typing import Any

import pytest

from drumbeat.coordinator.core.events import DrainAsked, RestartAsked, StopAsked
from drumbeat.coordinator.core.model import Hang, VerdictCause
from drumbeat.coordinator.core.phases.preflight import WORD_S
from drumbeat.coordinator.core.run.adaptive_timeouts import Observation
from drumbeat.coordinator.core.run.records import HostEvent, HostNoted, RoundStarted
from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress
from drumbeat.model import GroupState, HangKind, Health, HealthState, PreflightFinding
from tests.support.operator import ask
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


def test_one_that_fails_blames_no_host_for_a_round_of_training() -> None:
    story = a_story(restarts_max=3, exclude_after=1)
    story.fail("b")
    story.advance(60.0)
    assert story.assignment("a").is_preflight
    assert story.records(HostNoted) == []
    pass_all(story)
    round_id = story.state().round_id
    story.record("b", round_id=round_id, happened_at=story.now)
    story.fail("b")
    story.advance(60.0)
    (told,) = story.records(HostNoted)
    assert told.kind is HostEvent.EXCLUDED


def test_one_that_fails_and_names_a_host_is_not_repeated() -> None:
    story = a_story(restarts_max=0)
    story.agents["a"].more = names(5)
    story.fail("a")
    story.agents["a"].more = {}
    story.advance(WORD_S)
    assert story.ranks() == ["a", "b"]
    assert story.state().restart_count == 0


def test_all_that_workers_name_counts_who_fail_one_soon_after_another() -> None:
    story = a_story(agents_min=1, restarts_max=0)
    for name, ranks in (("a", [2, 4]), ("b", [5])):
        story.agents[name].more = names(*ranks, reason=f"says {name}")
        story.fail(name)
        story.agents[name].more = {}
        story.advance(1.0)
    story.succeed("c")
    assert story.ranks() == ["a"]
    assert story.state().left_out == {"b.1": "rank 2: says a", "c.1": "rank 4: says a"}


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


def test_a_rank_that_does_not_exist_is_told_beside_those_that_do() -> None:
    story = a_story()
    story.beat("b", more=names(3, 99))
    pass_all(story)
    assert story.ranks() == ["a", "c"]
    assert story.state().reason.endswith("b (rank 3: slow); there is no rank 99 (slow)")


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


def test_a_coordinator_that_comes_back_waits_for_what_those_say_who_are_done() -> None:
    story = a_story()
    story.agents["b"].more = names(4)
    story.succeed("a")
    story.succeed("b")
    story.restart()
    story.advance(0.5)
    story.back("c")
    story.succeed("c")
    assert story.assignment("c").is_preflight
    story.back("a")
    assert story.state().round_id == 0
    story.back("b")
    assert story.state().left_out == {"c.1": "rank 4: slow"}


def test_one_who_was_done_and_is_lost_is_not_waited_for() -> None:
    story = a_story()
    story.succeed("b")
    story.leave("b")
    pass_all(story, "ac")
    story.advance(10.0)
    assert story.ranks() == ["a", "c"]
    assert not story.assignment("a").is_preflight


def test_failures_of_the_preflight_are_delayed_and_training_begins_afresh() -> None:
    story = a_story(restarts_max=9, restart_delay_max_s=60.0, no_progress_limit=1)
    waited = []
    for _ in range(3):
        for name in "abc":
            # What it says of steps is nothing that training could fall behind.
            story.beat(name, workers=(WorkerProgress(local_rank=0, step=100),))
            story.fail(name)
        waited.append(round(story.state().restarts.until_s - story.now))
        story.advance(10.0)
    assert [max(0, each) for each in waited] == [0, 1, 2]
    pass_all(story)
    assert story.state().round_id == 4
    assert story.assignment("a").restart_count == 0
    story.beat("a", workers=(WorkerProgress(local_rank=0, step=1),))
    story.fail("a")  # it came to its first new step
    assert story.state().round_id == 5
    assert story.assignment("a").restart_count == 1
    assert story.state().restarts.farthest == 1


@pytest.mark.parametrize("rule", ["exit=1:fail", "exit=1:restart-free", "hang:fail"])
def test_restart_rules_judge_no_preflight(rule: str) -> None:
    story = a_story(restarts_max=1, free_restarts_max=1, restart_rules=(rule,))
    hang = Hang(kind=HangKind.TIMER, limit_s=1, elapsed_s=1) if "hang" in rule else None
    story.record("a", exit_code=1, happened_at=story.now, hang=hang)
    for name in "abc":
        story.fail(name)
    assert story.assignment("a").is_preflight
    assert story.state().restart_count == 1
    assert story.state().restarts.free == 0


def test_limits_are_not_learned_from_it() -> None:
    story = a_story()
    seen = (Observation(section="", longest_s=1.0, samples=1000),)
    story.beat("a", observations=seen)
    pass_all(story)
    story.advance(5.0)
    assert not story.state().limits
    story.beat("a", observations=seen)
    story.advance(5.0)
    assert story.state().limits


def test_a_stop_ends_the_run_and_a_restart_repeats_the_preflight_uncharged() -> None:
    story = a_story()
    for name in "abc":
        story.beat(name, GroupState.RUNNING, workers_alive=2)
    ask(story, RestartAsked)
    story.advance(1.0)
    assert story.state().round_id == 1
    assert story.assignment("a").is_preflight
    assert story.state().restart_count == 0
    ask(story, StopAsked)
    story.advance(10.0)
    assert story.verdict("a").cause is VerdictCause.STOPPED


def test_a_drained_host_leaves_it_and_the_others_repeat_it() -> None:
    story = a_story()
    ask(story, DrainAsked, name="b", reason="new disk")
    story.advance(10.0)
    assert story.ranks() == ["a", "c"]
    assert story.assignment("a").is_preflight
    assert story.state().restart_count == 0


def test_the_run_ends_only_once_workers_that_still_run_are_stopped() -> None:
    story = a_story()
    story.agents["a"].more = names(0, 2)
    for name in "abc":
        story.beat(name, GroupState.RUNNING, workers_alive=2)
    story.fail("a")
    story.advance(WORD_S)
    decisions = [each.decision for each in story.state().history]
    assert decisions[-2:] == ["run failing", "run failed"]
    assert story.verdict("c").cause is VerdictCause.AGENTS_MISSING


def test_naming_everybody_ends_the_run() -> None:
    story = a_story(agents_min=1)
    story.beat("a", more=names(*range(6)))
    pass_all(story)
    assert story.verdict("a").reason.endswith("0 are left of at least 1")


def test_one_that_was_left_out_is_told_while_others_are_awaited() -> None:
    story = a_story()
    story.beat("b", more=names(3))
    pass_all(story)
    story.leave("c")
    story.advance(10.0)
    assert story.standby("b").reason == "left out by the preflight: rank 3: slow"
    assert story.standby("a").reason == "1 of 2 agents, waiting for 1"


def test_the_health_of_one_that_was_left_out_holds_up_nobody() -> None:
    story = a_story(restarts_max=9)
    story.beat("b", more=names(3))
    pass_all(story)
    for state in (HealthState.CHECKING, HealthState.UNHEALTHY):
        story.beat("b", more={"health": Health(state=state, reason="hot")})
        story.fail("a")
        story.advance(5.0)
        assert story.ranks() == ["a", "c"]
    story.leave("c")
    story.advance(10.0)
    assert story.run().reason(story.now) == "1 of 2 agents, waiting for 1"


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
