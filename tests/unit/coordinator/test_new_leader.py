"""How long a new leader waits for agents that its journal knows."""

from typing import Any

import pytest
from msgspec.structs import replace

from drumbeat.coordinator.core.events import OutageEnded
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.run.records import AgentRemoved, RoundStarted
from tests.support.world import Story, a_story


def a_failover(*, knows_several: bool = True, **policy: Any) -> Story:
    """Return a run of a and b, for which c stands by, as a new leader finds it."""
    story = a_story(2, policy=Policy(checkpoint_grace_s=0.0, has_others=True))
    story.is_lively = True
    for name in "abc":
        story.join(name, knows_several=knows_several)
    story.advance(100.0)
    story.policy = replace(story.policy, **{"is_successor": True, **policy})
    story.restart()
    return story


def rejoin_s(story: Story) -> float:
    """Return how long it waits for the next agent after one."""
    return story.policy.rejoin_s(story.policy.base_pace)


@pytest.mark.parametrize("hello_s", [0.0, 1.0, 9.0])
def test_an_agent_that_died_with_the_old_leader_is_replaced_soon(hello_s: float) -> None:
    story = a_failover()
    story.advance(hello_s)
    story.back("b")
    story.back("c")
    story.advance(rejoin_s(story) - 0.1)
    assert story.ranks() == ["a", "b"]
    story.advance(0.2)
    assert sorted(story.ranks()) == ["b", "c"]
    assert "it did not come back to the new leader" in story.records(AgentRemoved)[0].reason


def test_a_new_leader_waits_as_long_as_agents_come_back() -> None:
    story = a_failover()
    for name in "cba":
        story.advance(rejoin_s(story) - 0.1)
        story.back(name)
    story.advance(100.0)
    assert len(story.records(RoundStarted)) == 1


def test_an_agent_that_dies_before_its_first_beat_to_a_new_leader_is_replaced_soon() -> None:
    story = a_failover()
    story.is_lively = False  # it says hello, and no more
    for name in "bca":
        story.back(name)
    story.break_session("a")
    story.is_lively = True
    story.advance(rejoin_s(story) + 0.1)
    assert sorted(story.ranks()) == ["b", "c"]


@pytest.mark.parametrize(
    ("knows_several", "is_successor", "is_one_back"),
    [(False, True, True), (True, False, True), (True, True, False)],
)
def test_agents_have_longer_where_they_may_be_late(
    knows_several: bool, is_successor: bool, is_one_back: bool
) -> None:
    """One given a single address notices silence late; where none led, hosts may be away."""
    story = a_failover(knows_several=knows_several, is_successor=is_successor)
    if is_one_back:
        story.back("b")
        story.back("c")
    story.advance(story.policy.restart_grace_s - 0.1)
    assert sorted(story.ranks()) == ["a", "b"]


def test_agents_that_looked_for_another_leader_have_longer() -> None:
    """The new leader stood still: who came back before that says nothing of the others."""
    story = a_failover()
    story.back("b")
    story.back("c")
    story.handle(OutageEnded())
    story.advance(story.policy.restart_grace_s - 0.1)
    assert story.ranks() == ["a", "b"]
