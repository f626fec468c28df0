"""Where workers of a round meet: the address of its leader, and a port used once."""

import pytest

from drumbeat.coordinator.core.events import OutageEnded
from drumbeat.coordinator.core.run.records import RoundStarted
from drumbeat.coordinator.core.run.state import Phase
from tests.support.world import a_running_story, a_story

MET = "2 of 2 agents are there"


def test_a_round_waits_for_a_free_port_of_its_leader() -> None:
    story = a_running_story(2, restarts_max=5)
    story.agents["a"].port = 20_000  # it did not reserve another one
    story.fail("a")
    assert story.standby("b").reason == "waiting for a free port of a"
    story.beat("a", port=20_777)
    assert story.assignment("b").master_port == 20_777


def test_an_address_of_an_earlier_round_does_not_come_again() -> None:
    story = a_running_story(1, restarts_max=5)
    story.beat("a", port=20_001)
    story.fail("a")
    story.obey("a")
    story.beat("a", port=20_000)
    assert story.desired("a").master_port_spent == 20_000
    story.fail("a")
    assert story.standby("a").reason == "waiting for a free port of a"
    story.restart()
    story.back("a")
    assert story.desired("a").master_port_spent == 20_000
    story.beat("a", port=20_002)
    assert [started.master_port for started in story.records(RoundStarted)] == [
        20_000,
        20_001,
        20_002,
    ]


def test_a_leader_that_never_gets_a_port_ends_the_run_with_a_reason() -> None:
    story = a_story(1, join_timeout_s=60.0)
    story.join("a", port=0)
    story.advance(59.9)
    assert story.state().phase is Phase.GATHERING
    story.advance(0.2)
    reason = "a, which leads the round, held no free port for 60 s"
    assert story.verdict("a").reason == reason


def test_a_coordinator_that_stood_still_reads_what_waits_before_it_gives_a_run_up() -> None:
    """Two reports came in time; the first of them is read too late, and is not the last word."""
    story = a_story(1, join_timeout_s=60.0)
    story.join("a", port=0)
    story.now += 61.0
    story.beat("a", port=0)
    assert story.state().phase is Phase.GATHERING
    story.beat("a", port=20_001)
    assert story.assignment("a").master_port == 20_001


@pytest.mark.parametrize(("present", "reason"), [(1, "a free port of a"), (0, "1 of 2 agents")])
def test_who_could_not_be_told_or_come_during_an_outage_is_waited_for_anew(
    present: int, reason: str
) -> None:
    story = a_story(2 - present, join_timeout_s=60.0)
    story.join("a", port=0)
    story.now += 61.0
    story.handle(OutageEnded())
    story.advance(59.0)
    assert reason in story.standby("a").reason
    story.advance(2.0)
    assert story.state().phase is Phase.ENDED


def test_a_port_given_with_the_spec_is_used_for_every_round() -> None:
    story = a_running_story(1, restarts_max=5, master_addr="head", master_port=29_500)
    story.fail("a")
    rounds = [(r.master_addr, r.master_port) for r in story.records(RoundStarted)]
    assert rounds == [("head", 29_500)] * 2
