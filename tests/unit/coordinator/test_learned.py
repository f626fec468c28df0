"""Limits learned from how long things take."""

import pytest

from drumbeat.coordinator.core.run.adaptive_timeouts import (
    HEARTBEAT,
    NAMES_MAX,
    LearnedLimit,
    Learning,
    LearningRules,
    Observation,
)
from drumbeat.coordinator.core.run.records import LimitsLearned
from tests.support.world import Story, a_running_story

RULES = LearningRules()
ENOUGH = RULES.heartbeats_min


def observed(longest_s: float, samples: int = ENOUGH, section: str = HEARTBEAT) -> Observation:
    return Observation(section=section, longest_s=longest_s, samples=samples)


def learn(learning: Learning, *observations: Observation) -> dict[str, float]:
    learning.observe(observations, now=0.0)
    return {limit.section: limit.limit_s for limit in learning.limits()}


def test_a_limit_is_the_longest_time_of_all_hosts_with_a_margin() -> None:
    learning = Learning(RULES)
    assert learn(learning, observed(2.0), observed(3.0), observed(1.0)) == {HEARTBEAT: 15.0}


@pytest.mark.parametrize(
    ("section", "least"), [(HEARTBEAT, RULES.heartbeats_min), ("save", RULES.sections_min)]
)
def test_nothing_is_applied_before_there_are_enough_samples(section: str, least: int) -> None:
    learning = Learning(RULES)
    assert learn(learning, observed(2.0, least - 1, section)) == {}
    assert learning.due_at is None
    assert learn(learning, observed(2.0, least, section)) == {section: 10.0}


def test_times_before_there_were_enough_samples_count() -> None:
    learning = Learning(RULES)
    learn(learning, observed(9.0, 1))
    assert learn(learning, observed(1.0)) == {HEARTBEAT: 45.0}


def test_no_limit_is_below_the_floor() -> None:
    assert learn(Learning(RULES), observed(0.001)) == {HEARTBEAT: RULES.limit_min_s}


def test_within_a_round_a_limit_only_grows() -> None:
    learning = Learning(RULES, [LearnedLimit(section=HEARTBEAT, limit_s=100.0, settled_s=100.0)])
    assert learn(learning, observed(2.0)) == {HEARTBEAT: 100.0}
    assert learn(learning, observed(40.0)) == {HEARTBEAT: 150.0}
    assert learn(learning, observed(1.0)) == {HEARTBEAT: 150.0}


def test_over_rounds_it_is_smoothed_and_may_fall() -> None:
    learning = Learning(RULES)
    learn(learning, observed(20.0))
    learning.end_round()
    learn(learning, observed(4.0))
    learning.end_round()
    assert learn(learning) == {HEARTBEAT: 60.0}


def test_a_round_with_too_few_samples_changes_nothing_and_frees_new_names() -> None:
    learning = Learning(RULES)
    learn(learning, observed(20.0))
    learning.end_round()
    learn(learning, observed(50.0, 1), observed(1.0, 1, "save"))
    learning.end_round()
    assert learn(learning) == {HEARTBEAT: 100.0}
    assert learn(learning, observed(1.0, 2, "save"), observed(1.0, 1)) == {HEARTBEAT: 100.0}


def test_what_is_learned_goes_on_from_what_was_noted() -> None:
    first = Learning(RULES, [LearnedLimit(section="save", limit_s=100.0, settled_s=100.0)])
    learn(first, observed(40.0, 5, "save"))
    second = Learning(RULES, first.limits())
    assert second.limits() == first.limits()
    for learning in (first, second):
        learning.end_round()
    assert second.limits() == first.limits()
    assert second.limits()[0].limit_s == 150.0


def test_only_a_change_by_a_tenth_is_news_and_changes_are_told_together() -> None:
    learning = Learning(RULES)
    learning.observe([observed(10.0)], now=5.0)
    learning.observe([observed(90.0)], now=6.0)
    assert learning.due_at == 5.0 + RULES.interval_s
    learning.limits()
    assert learning.due_at is None
    learning.observe([observed(98.0)], now=9.0)
    assert learning.due_at is None
    learning.observe([observed(100.0)], now=10.0)
    assert learning.due_at == 10.0 + RULES.interval_s


def test_names_are_bounded_and_the_heartbeat_always_has_a_place() -> None:
    learning = Learning(RULES)
    names = [observed(1.0, 3, f"s{i}") for i in range(3 * NAMES_MAX)]
    assert len(learn(learning, *names)) == NAMES_MAX - 1
    assert len(learn(learning, observed(1.0))) == NAMES_MAX


def test_what_is_forgotten_is_learned_anew() -> None:
    learning = Learning(RULES)
    learn(learning, observed(9.0), observed(1.0, 1, "save"))
    learning.forget()
    assert learning.limits() == ()
    assert learn(learning, observed(2.0)) == {HEARTBEAT: 10.0}


# In a run.


def limits_of(story: Story) -> list[dict[str, float] | None]:
    return [agent.limits for agent in story.agents.values()]


def test_a_limit_is_journaled_once_and_told_to_all_after_a_while() -> None:
    story = a_running_story(2)
    story.beat("a", observations=(observed(2.0),))
    story.beat("b", observations=(observed(3.0),))
    assert story.records(LimitsLearned) == []
    story.advance(RULES.interval_s)
    assert limits_of(story) == [{HEARTBEAT: 15.0}] * 2
    story.advance(100.0)
    (record,) = story.records(LimitsLearned)
    assert [limit.limit_s for limit in record.limits] == [15.0]


def test_what_an_earlier_round_or_a_stranger_observed_does_not_count() -> None:
    story = a_running_story(1, 2, restarts_max=1, last_call_s=500.0)
    story.join("z")
    story.beat("z", observations=(observed(2.0),))
    story.beat("a", observations=(observed(2.0),), round_id=7)
    story.advance(10.0)
    assert story.records(LimitsLearned) == []


def test_the_next_round_begins_with_the_average_told_at_once() -> None:
    story = a_running_story(1, restarts_max=2)
    for longest in (20.0, 4.0):
        story.beat("a", observations=(observed(longest),))
        story.fail("a")
        story.obey_all()
    assert limits_of(story) == [{HEARTBEAT: 60.0}]


def test_a_reset_is_told_to_all_and_survives_a_restart() -> None:
    story = a_running_story(2)
    story.beat("a", observations=(observed(2.0),))
    story.advance(RULES.interval_s)
    assert story.reset_limits() == 1
    assert limits_of(story) == [{}, {}]
    story.restart()
    assert story.state().limits == ()
    story.agents["a"].limits = {HEARTBEAT: 10.0}  # it missed the word of it
    story.back("a")
    assert limits_of(story) == [{}, {}]
    assert story.reset_limits() == 0


def test_a_newcomer_is_told_and_nobody_where_nothing_was_learned() -> None:
    story = a_running_story(1, 2)
    assert limits_of(story) == [None]
    story.beat("a", observations=(observed(2.0),))
    story.advance(RULES.interval_s)
    story.join("b")
    assert limits_of(story) == [{HEARTBEAT: 10.0}] * 2


def test_a_run_that_is_not_there_has_nothing_to_forget() -> None:
    assert a_running_story(1).reset_limits("other") is None
