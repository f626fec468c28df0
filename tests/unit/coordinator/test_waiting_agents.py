"""What agents that wait cost: their beats, their arrival, and what they are shown meanwhile."""

from functools import partial

import pytest

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import BeatReceived, DeadlineReached, DrainAsked
from drumbeat.coordinator.core.model import Beat
from drumbeat.coordinator.core.policy import Policy
from drumbeat.model import GroupState
from tests.support.call_counts import calls_of
from tests.support.world import RUN, Story, a_spec


def a_story(agents_min: int, agents_max: int, policy: Policy | None = None) -> Story:
    spec = a_spec(agents_min, agents_max, join_timeout_s=600.0)
    return Story(spec=spec, policy=policy or Policy(), is_lively=True)


def joined(story: Story, agents: int) -> Story:
    for number in range(agents):
        story.join(f"h{number}", program="train.py", role=f"role{number * 2 // agents}")
    return story


def beat(story: Story, name: str) -> BeatReceived:
    agent = story.agents[name]
    said = Beat(state=GroupState.IDLE, master_port=agent.port)
    incarnation = agent.identity.incarnation
    return BeatReceived(
        run_id=RUN, session_id=agent.session_id or "", incarnation=incarnation, beat=said
    )


def test_those_who_wait_are_shown_every_two_seconds_how_many_there_are() -> None:
    story = joined(a_story(41, 41), 40)
    assert story.standby("h0").agents_present == 1
    story.advance(2.0)
    assert story.standby("h0").agents_present == 40


def test_the_more_wait_the_rarer_each_one_is_shown_how_many_there_are() -> None:
    story = joined(a_story(41, 41, Policy(progress_messages_per_s=4)), 40)
    story.advance(9.5)
    assert story.standby("h0").agents_present == 1
    story.advance(0.5)
    assert story.standby("h0").agents_present == 40


def test_all_who_arrive_within_a_time_get_no_more_messages_than_its_seconds_allow() -> None:
    policy = Policy(progress_messages_per_s=10)
    story, messages = a_story(500, 500, policy), 0
    for number in range(400):
        story.now += 0.1
        due = story.registry.next_deadline()
        if due is not None and due <= story.now:
            story.handle(DeadlineReached())
            messages += len(story.of(fx.Direct))
        story.join(f"h{number}")
    assert 0 < messages <= 40 * policy.progress_messages_per_s


@pytest.mark.parametrize("is_outside", [False, True])
def test_a_beat_of_an_agent_that_waits_needs_no_turn(is_outside: bool) -> None:
    story = a_story(3, 3)
    if is_outside:
        story.handle(DrainAsked(run_id="", name="h0", request_id=1, caller="op"))
    joined(story, 2)
    assert any(story.run().outside()) is is_outside
    assert story.registry.take_quietly(beat(story, "h0"), now=story.now)


@pytest.mark.parametrize(("least", "most"), [(900, 900), (10, 10), (10, 900)])
def test_an_arrival_costs_the_same_however_many_wait(least: int, most: int) -> None:
    """For a first round, for a seat of a full one, and for the next, larger one."""
    story, calls = a_story(least, most), []
    story.is_lively = False
    for number in range(400):
        join = partial(story.join, f"h{number}", program="train.py", role=f"role{number // 200}")
        calls.append(calls_of(join))
    assert calls[20] > 50
    # The first of a role is compared with all others.
    assert max(calls[21:200] + calls[201:]) < 2 * calls[20]
