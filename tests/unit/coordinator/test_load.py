"""A coordinator that reads beats too late, and gives nobody up for that."""

import pytest

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.membership.leases import RunMembers
from drumbeat.coordinator.core.membership.load import HELD_MAX_S, Load
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.run.records import AgentRemoved
from drumbeat.model import Pace
from tests.support.world import RUN, START, Story, a_running_story, a_spec

POLICY = Policy(behind_min=2, behind_share=0.5)


def a_busy_story() -> Story:
    """Four agents train in it; of two nothing is read from now on, though they are connected."""
    story = a_running_story(4, policy=POLICY)
    for name in "ab":
        story.silence(name)
    return story


def lost(story: Story) -> int:
    return len(story.records(AgentRemoved))


def paces(effects: list[fx.Effect]) -> set[tuple[str, float, float]]:
    """Return the new paces, each with the session that is told it."""
    told = (effect for effect in effects if isinstance(effect, fx.SetPace))
    return {(e.session_id, e.pace.heartbeat_interval_s, e.pace.lease_s) for e in told}


def test_when_many_are_silent_at_once_all_beat_more_rarely_and_nobody_is_lost() -> None:
    story = a_busy_story()
    assert not paces(story.advance(4.9))
    told = paces(story.advance(0.2))
    assert {pace[1:] for pace in told} == {(2.0, 10.0)}
    assert {pace[0] for pace in told} == {agent.session_id for agent in story.agents.values()}
    assert {pace[1:] for pace in paces(story.advance(5.0))} == {(4.0, 20.0)}
    assert lost(story) == 0


def test_those_who_are_heard_at_last_train_on() -> None:
    story = a_busy_story()
    story.advance(8.0)
    for name in "ab":
        story.agents[name].is_silent = False
    story.advance(100.0)
    assert (lost(story), story.state().round_id) == (0, 0)


def test_those_who_stay_silent_are_lost_in_the_end() -> None:
    story = a_busy_story()
    story.advance(39.9)
    assert (story.registry.load.stretch, lost(story)) == (POLICY.stretch_max, 0)
    story.advance(0.2)
    assert [record.reason for record in story.records(AgentRemoved)] == [
        "nothing was heard of it for 40 s"
    ] * 2


def test_a_few_who_are_silent_are_lost_after_the_lease() -> None:
    story = a_running_story(5, policy=POLICY)
    for name in "ab":
        story.silence(name)
    assert not paces(story.advance(5.1))
    assert lost(story) == 2


def test_hosts_whose_connections_break_are_lost_as_fast_as_ever() -> None:
    story = a_busy_story()
    story.advance(4.5)
    for name in "ab":
        story.break_session(name)
    assert not paces(story.advance(0.6))
    assert lost(story) == 2


def test_all_runs_count_and_all_have_longer() -> None:
    story = a_running_story(4, policy=POLICY)
    for name in "xyz":
        story.join(name, run_id="other", spec=a_spec(3))
    for name in "axyz":  # of seven; one of four is not half of its own run
        story.silence(name)
    story.advance(6.0)
    intervals = {story.run(name).members.pace.heartbeat_interval_s for name in (RUN, "other")}
    assert (intervals, lost(story)) == ({2.0}, 0)


def test_a_run_that_begins_meanwhile_has_the_same_pace() -> None:
    story = a_busy_story()
    story.advance(6.0)
    story.join("x", run_id="other", spec=a_spec(1))
    (welcome,) = story.of(fx.Welcome)
    assert (welcome.pace.heartbeat_interval_s, welcome.pace.lease_s) == (2.0, 10.0)


def test_the_pace_is_eased_after_a_while_and_those_who_took_their_time_have_a_whole_lease() -> None:
    story = a_busy_story()
    story.advance(5.1)
    for name in "ab":
        story.agents[name].is_silent = False
    story.advance(599.0)
    assert story.run().members.pace.heartbeat_interval_s == 2.0
    story.silence("a")
    eased = story.advance(3.0)
    assert {pace[1:] for pace in paces(eased)} == {(1.0, 5.0)}
    story.advance(3.0)
    assert lost(story) == 0
    story.advance(2.1)
    assert lost(story) == 1


def a_load(silent: int = 200, connected: int = 1_000) -> Load:
    load = Load(Policy())
    load.count_members = lambda: (silent, connected)
    return load


@pytest.mark.parametrize(
    ("silent", "connected", "is_behind"),
    [(99, 100, False), (100, 100, True), (100, 1_001, False), (101, 1_001, True)],
)
def test_it_takes_a_hundred_and_a_tenth_of_all(
    silent: int, connected: int, is_behind: bool
) -> None:
    assert a_load(silent, connected).explains_silence(now=0.0) is is_behind


def test_a_pace_that_was_eased_too_soon_holds_for_twice_as_long_the_next_time() -> None:
    load, now, held = a_load(), START, list[float]()
    for _ in range(6):
        assert load.explains_silence(now=now)
        began, now = now, now + 1.0
        while load.stretch > 1:
            now += 1.0
            load.ease(now=now)
        held.append(now - began)
    assert held == [600.0, 1200.0, 2400.0, HELD_MAX_S, HELD_MAX_S, HELD_MAX_S]


def test_it_is_eased_step_by_step() -> None:
    load, stretches = a_load(), list[int]()
    for _ in range(3):
        load.explains_silence(now=0.0)
    assert not load.explains_silence(now=0.0)
    for now in (599.0, 600.0, 1199.0, 1200.0, 1800.0, 1e6):
        load.ease(now=now)
        stretches.append(load.stretch)
    assert stretches == [8, 4, 4, 2, 1, 1]


def test_those_who_wait_in_a_large_run_may_be_silent_for_as_long_as_those_who_train() -> None:
    load = a_load()
    load.stretch = 8
    members = RunMembers(POLICY, agents=POLICY.agents_at_base_pace + 1, load=load)
    assert members.pace == Pace(
        heartbeat_interval_s=16.0,
        lease_s=40.0,
        reconnect_delay_max_s=0.5,
        waiting_interval_s=16.0,
    )
