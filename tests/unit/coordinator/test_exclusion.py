"""Hosts that are blamed for failed rounds: who is excluded, under which limits, for how long."""

from typing import Any

import pytest

from drumbeat.coordinator.core.events import DrainAsked
from drumbeat.coordinator.core.membership.exclusion import SETTLED_S, excluded_max
from drumbeat.coordinator.core.model import Accusation, Hang
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.run.records import AgentAdmitted, HostEvent, HostNoted
from drumbeat.coordinator.core.run.state import ACCUSATIONS_MAX, Phase
from drumbeat.model import Assignment, GroupState, HangKind, Standby
from tests.support.operator import ask
from tests.support.world import RUN, Story, a_running_story, a_spec

WATCHED: dict[str, Any] = {"agents_min": 2, "restarts_max": 50, "is_lively": True}


def a_watched_story(size: int = 3, **fields: Any) -> Story:
    return a_running_story(size, size, **({"exclude_after": 2} | WATCHED | fields))


def fail(story: Story, name: str, **record: Any) -> None:
    story.record(name, **({"exit_code": 1, "happened_at": story.now} | record))
    story.fail(name)
    story.advance(story.spec.last_call_s + SETTLED_S + 1)


def accuse(story: Story, name: str, *accusations: Accusation) -> None:
    agent = story.agents[name]
    agent.more = {"accusations": accusations}
    story.beat(name)
    story.beat(name)
    agent.more = {}


def events(story: Story, kind: HostEvent) -> list[str]:
    return [record.reason for record in story.records(HostNoted) if record.kind is kind]


def excluded(story: Story) -> list[str]:
    return [drain.name for drain in story.registry.drains.exclusions]


def takes_part(story: Story, name: str) -> bool:
    return isinstance(story.desired(name).state, Assignment)


def test_a_host_is_excluded_after_its_second_failed_round_and_the_others_go_on() -> None:
    story = a_watched_story()
    fail(story, "b")
    assert excluded(story) == []
    fail(story, "b")
    (told,) = events(story, HostEvent.EXCLUDED)
    assert told.startswith("host b is excluded for 1 h: blamed for 2 rounds in a row: rank ")
    assert (excluded(story), story.state().phase) == (["b"], Phase.RUNNING)
    assert takes_part(story, "a")
    standby = story.desired("b").state
    assert isinstance(standby, Standby)
    assert standby.time_left_s is not None
    assert 3500 < standby.time_left_s <= 3600
    assert "`coordinator undrain b --run-id run` lets it in" in standby.reason


def test_without_the_option_no_host_is_excluded() -> None:
    story = a_watched_story(exclude_after=0)
    for _ in range(4):
        fail(story, "b")
    assert events(story, HostEvent.EXCLUDED) == []


def test_a_round_that_another_host_fails_ends_the_row() -> None:
    story = a_watched_story()
    for name in "bcbc":
        fail(story, name)
    assert excluded(story) == []


def test_rounds_beyond_the_window_do_not_count() -> None:
    story = a_watched_story(exclude_window_s=100.0)
    fail(story, "b")
    story.advance(200.0)
    fail(story, "b")
    assert excluded(story) == []
    fail(story, "b")
    assert excluded(story) == ["b"]


def test_what_hits_most_hosts_at_once_is_the_fault_of_none() -> None:
    story = a_watched_story(4)
    for _ in range(3):
        for name in "abc":
            story.record(name, exit_code=1, happened_at=story.now)
        fail(story, "a")
    assert events(story, HostEvent.EXCLUDED) == []


def test_hosts_that_fail_alike_one_after_the_other_are_excused_and_that_is_waited_for() -> None:
    story = a_watched_story(5, exclude_after=1, last_call_s=0.0)
    round_id = story.state().round_id
    story.record("a", exit_code=70, happened_at=story.now)
    story.fail("a")
    assert (excluded(story), story.state().phase) == ([], Phase.GATHERING)
    for seconds, name in ((0.1, "b"), (0.2, "c")):
        story.advance(seconds)
        story.record(name, round_id=round_id, exit_code=70, happened_at=story.now)
    story.advance(SETTLED_S)
    assert (excluded(story), story.state().phase) == ([], Phase.RUNNING)


def test_the_round_without_an_excluded_host_waits_for_the_workers_there_to_end() -> None:
    story = a_watched_story(exclude_after=1, is_lively=False)
    story.record("a", exit_code=70, happened_at=story.now)
    story.beat("a", GroupState.FAILED, workers_alive=1)
    story.obey("b")
    story.obey("c")
    story.advance(SETTLED_S)
    assert excluded(story) == ["a"]
    assert story.run().reason(story.now) == "waiting for the workers of a to end"
    story.obey("a")
    assert sorted(story.ranks()) == ["b", "c"]


def test_hosts_that_fail_with_others_in_ways_of_their_own_are_not_excused() -> None:
    story = a_watched_story(5, exclude_after=1)
    others = {"b": "RuntimeError: Connection closed", "c": "RuntimeError: Connection closed"}
    for name, message in {"a": "ValueError: bad memory", **others}.items():
        story.record(name, exit_code=1, message=message, happened_at=story.now)
        story.advance(0.1)
    story.fail("a")
    story.advance(story.spec.last_call_s + SETTLED_S + 1)
    assert excluded(story) == ["a"]


def test_a_round_that_excludes_nobody_is_not_held_up() -> None:
    story = a_watched_story(last_call_s=0.0)
    story.record("b", exit_code=70, happened_at=story.now)
    story.fail("b")
    assert story.state().phase is Phase.RUNNING


def test_no_exclusion_goes_below_the_minimum_and_that_is_said_once() -> None:
    story = a_watched_story(3, agents_min=3)
    for _ in range(4):
        fail(story, "b")
    (told,) = events(story, HostEvent.NOT_EXCLUDED)
    assert "2 other agents are present and the run needs 3" in told
    assert story.state().phase is Phase.RUNNING
    assert excluded(story) == []


@pytest.mark.parametrize(
    ("hosts", "percent", "most"), [(3, 2.0, 1), (99, 2.0, 1), (100, 2.0, 2), (200, 5.0, 10)]
)
def test_of_all_hosts_a_part_may_be_excluded_and_one_in_any_case(
    hosts: int, percent: float, most: int
) -> None:
    assert excluded_max(hosts, percent) == most
    assert excluded_max(hosts, 0.0) == 0


def test_no_second_host_is_excluded_while_the_cap_is_reached() -> None:
    story = a_watched_story(4)
    for name in "bbcc":
        fail(story, name)
    assert excluded(story) == ["b"]
    (told,) = events(story, HostEvent.NOT_EXCLUDED)
    assert "1 host is and --exclude-max allows 1 at once" in told


def test_an_exclusion_ends_by_itself_and_the_host_begins_with_an_empty_row() -> None:
    story = a_watched_story(exclude_for_s=60.0)
    for name in "bb":
        fail(story, name)
    story.advance(61.0)
    assert events(story, HostEvent.READMITTED) == [
        "host b may take part again: it was excluded for 1 min"
    ]
    assert (excluded(story), story.registry.drains.kept) == ([], {})
    story.advance(30.0)
    assert takes_part(story, "b")
    fail(story, "b")
    assert excluded(story) == []


def test_an_operator_ends_an_exclusion() -> None:
    story = a_watched_story()
    for name in "bb":
        fail(story, name)
    ask(story, DrainAsked, name="b", run_id=RUN, is_lifted=True)
    story.advance(30.0)
    assert takes_part(story, "b")


def test_rows_and_exclusions_outlive_a_restart_of_the_coordinator() -> None:
    story = a_watched_story(exclude_for_s=600.0)
    fail(story, "b")
    story.restart()
    for name in "abc":
        story.back(name)
    fail(story, "b")
    assert excluded(story) == ["b"]
    story.restart()
    for name in "abc":
        story.back(name)
    assert isinstance(story.desired("b").state, Standby)
    story.advance(700.0)
    assert excluded(story) == []


def test_a_replacement_under_the_same_name_is_let_in() -> None:
    story = Story(spec=a_spec(2, 3, exclude_after=2, restarts_max=9), is_lively=True)
    for name in "abc":
        story.join(name, host_id=f"machine {name}")
    story.obey_all()
    for name in "bb":
        fail(story, name)
    assert excluded(story) == ["b"]
    story.leave("b")
    story.join("b", host_id="machine b")
    assert isinstance(story.desired("b").state, Standby)
    story.join("b", host_id="another machine")
    story.advance(30.0)
    assert takes_part(story, "b")


def test_an_agent_that_is_lost_again_and_again_is_blamed() -> None:
    story = a_watched_story()
    for _ in range(2):
        story.silence("b")
        story.advance(60.0)
        if not excluded(story):
            story.join("b")
            story.advance(30.0)
    (told,) = events(story, HostEvent.NOT_EXCLUDED) or events(story, HostEvent.EXCLUDED)
    assert "its agent was lost" in told


def test_a_hang_is_blamed_on_the_hosts_of_its_causes() -> None:
    story = a_watched_story()
    hang = Hang(kind=HangKind.TIMER, limit_s=1, elapsed_s=1)
    for _ in range(2):
        story.record("a", exit_code=-15, is_stopped_by_agent=True, happened_at=story.now)
        fail(story, "b", exit_code=-9, hang=hang)
    assert excluded(story) == ["b"]


def test_an_accusation_blames_the_host_beside_the_root_cause() -> None:
    story = a_watched_story(5)
    for _ in range(2):
        rank = story.assignment("b").rank_first
        accuse(story, "a", Accusation(local_rank=0, rank=rank, reason="bad sums"))
        fail(story, "c" if not events(story, HostEvent.ACCUSED)[1:] else "d")
    (told,) = events(story, HostEvent.EXCLUDED)
    assert "blamed for 2 rounds in a row: accused by rank " in told
    assert told.endswith("on a: bad sums")
    assert len(events(story, HostEvent.ACCUSED)) == 2, "repeated beats say nothing new"


def test_accusations_of_a_round_are_bounded_and_ranks_that_are_not_there_are_passed_over() -> None:
    story = a_watched_story(3)
    many = tuple(Accusation(local_rank=0, rank=rank) for rank in range(ACCUSATIONS_MAX + 9))
    accuse(story, "a", *many, Accusation(local_rank=7))
    assert len(events(story, HostEvent.ACCUSED)) == 3
    assert story.state().phase is Phase.RUNNING, "it ends nothing"


def test_the_exception_of_a_failed_worker_accuses_a_host() -> None:
    story = a_watched_story(5)
    rank = story.assignment("b").rank_first
    fail(story, "a", suspect_rank=rank, message="ValueError: bad sums\nmore")
    (told,) = events(story, HostEvent.ACCUSED)
    assert told.endswith(f"accuses rank {rank} on b: ValueError: bad sums")


def test_a_restart_rule_excludes_a_host_also_without_the_option() -> None:
    story = a_watched_story(exclude_after=0, restart_rules=("exit=7:exclude",), free_restarts_max=1)
    fail(story, "b", exit_code=7)
    assert excluded(story) == ["b"]
    assert story.state().restarts_used == 0
    assert isinstance(story.desired("b").state, Standby)


def test_the_end_of_a_run_ends_its_exclusions() -> None:
    story = a_watched_story()
    for name in "bb":
        fail(story, name)
    for name in "ac":
        story.succeed(name)
    assert story.state().phase is Phase.ENDED
    assert story.registry.drains.kept == {}


def test_an_exclusion_that_would_end_after_its_run_lets_nobody_in() -> None:
    story = a_watched_story(exclude_for_s=60.0)
    fail(story, "b")
    fail(story, "b")
    story.is_lively = False  # its agents take long to leave
    for name in "ac":
        story.succeed(name)
    admitted = len(story.records(AgentAdmitted))
    story.advance(100.0)
    assert story.state().phase is Phase.ENDED
    assert len(story.records(AgentAdmitted)) == admitted


def test_an_operators_drain_takes_the_place_of_an_exclusion() -> None:
    story = a_watched_story(exclude_for_s=60.0)
    for name in "bb":
        fail(story, name)
    ask(story, DrainAsked, name="b", run_id=RUN, reason="disk")
    story.advance(100.0)
    (drain,) = story.registry.drains.active
    assert (drain.until_s, drain.reason) == (None, "disk")


def test_an_exclusion_needs_room_among_the_drains() -> None:
    story = a_watched_story(policy=Policy(drains_max=1))
    ask(story, DrainAsked, name="z")
    for name in "bb":
        fail(story, name)
    (told,) = events(story, HostEvent.NOT_EXCLUDED)
    assert "the limit of 1 drain is reached" in told
