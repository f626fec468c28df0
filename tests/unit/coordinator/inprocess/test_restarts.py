"""A run whose workers restart in process: ports, who hears what, losses, coordinator restarts."""

from types import SimpleNamespace
from typing import Any

import pytest

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.inprocess.records import (
    IterationBegan,
    IterationCompleted,
    IterationInterrupted,
    IterationPhase,
)
from drumbeat.coordinator.core.inprocess.restarts import InProcessRestarts
from drumbeat.coordinator.core.run.records import AgentRemoved, RoundEnd, RoundEnded
from drumbeat.coordinator.core.run.state import Phase
from drumbeat.inprocess import IterationBegin, IterationInterrupt
from drumbeat.model import Assignment, GroupState, Standby, Stop
from tests.support.inprocess.runs import an_iterating_story, enter_all, go_on
from tests.support.status import RunStatus, status_of
from tests.support.world import Story, a_running_story


def message(story: Story) -> RunStatus:
    return status_of(story.run().state, story.run(), now=story.now)


# Nothing for those that do not use it.


class Untouched(dict[str, Any]):
    """Seats of which all at once are never asked for: that takes as long as there are seats."""

    def keys(self) -> Any:
        raise AssertionError("linear in agents")


def test_an_event_with_nothing_to_tell_looks_at_no_seat() -> None:
    run: Any = SimpleNamespace(state=SimpleNamespace(iterations=None))
    current: Any = SimpleNamespace(seats=Untouched())
    assert InProcessRestarts(run, current, now=0.0).instructions() == []


def test_a_round_that_does_not_restart_in_process_says_nothing_of_it() -> None:
    story = a_running_story(2)
    assert story.beat("a") == []
    shown = message(story)
    assert (shown.HasField("iteration"), shown.iteration, shown.iterations_restarted) == (
        False,
        0,
        0,
    )
    assert story.run().reason(story.now) == "2 of 2 agents are there"


# Ports.


def test_an_iteration_waits_for_a_port_of_its_leader_that_nobody_had() -> None:
    story = a_running_story(2)
    spent = story.state().masters_spent[-1][1]
    story.agents["a"].port = spent
    story.enter("a")
    story.enter("b")
    assert story.records(IterationBegan) == []
    assert story.run().reason(story.now) == "iteration 0 is waiting for a free port of a"
    story.obey("a")
    (began,) = story.records(IterationBegan)
    assert (began.master_addr, began.master_port) == ("10.a", spent + 1)
    assert story.desired("a").master_port_spent == spent + 1
    assert story.state().masters_spent[-1] == ("10.a", spent + 1)
    assert story.run().reason(story.now) == "2 hosts entered iteration 0"


def test_a_leader_that_never_holds_a_port_ends_the_round_like_a_failed_worker() -> None:
    story = a_running_story(2, restarts_max=1, join_timeout_s=30.0)
    story.agents["a"].port = story.state().masters_spent[-1][1]
    story.enter("a")
    story.enter("b")
    story.advance(31)
    (ended,) = story.records(RoundEnded)
    assert ended.cause is RoundEnd.WORKER_FAILED
    assert "a, which leads the iteration, held no free port for 30 s" in ended.reason


def test_each_wait_for_a_port_has_a_limit_of_its_own() -> None:
    story = a_running_story(2, restarts_max=1, join_timeout_s=30.0)
    for iteration in range(2):
        story.agents["a"].port = story.state().masters_spent[-1][1]
        story.enter("a")
        story.enter("b")
        story.advance(20)
        story.obey_all()
        assert story.records(IterationBegan)[-1].iteration == iteration
        story.interrupt("b")
        story.obey_all()
    assert story.records(RoundEnded) == []


def test_no_two_iterations_and_no_round_share_a_place() -> None:
    story = an_iterating_story(2, restarts_max=5)
    for _ in range(3):
        story.interrupt("b")
        go_on(story)
    story.interrupt("a")
    story.fail("b")
    story.obey_all()
    enter_all(story)
    places = story.state().masters_spent
    assert len(places) == len(set(places)) == 7  # two rounds and five iterations


def test_an_address_given_for_the_round_is_not_that_of_another_leader() -> None:
    story = an_iterating_story(2, master_addr="head.example")
    (began,) = story.records(IterationBegan)
    assert began.master_addr == "head.example"
    story.terminate("a")
    story.obey_all()
    story.enter("b")
    assert story.records(IterationBegan)[-1].master_addr == "10.b"


# Who hears what, and when.


def test_everybody_hears_at_once_and_a_new_session_hears_again() -> None:
    story = an_iterating_story(3)
    story.break_session("c")
    story.interrupt("b")
    told = {story.sessions[e.session_id]: e.directive for e in story.of(fx.Instruct)}
    assert set(told) == {"a", "b"}
    assert all(isinstance(directive.kind, IterationInterrupt) for directive in told.values())
    kinds = [type(effect).__name__ for effect in story.back("c")]
    assert kinds == ["Welcome", "Direct", "Instruct"]
    (again,) = story.of(fx.Instruct)
    assert again.directive == told["a"]


def test_two_decisions_at_once_are_told_as_the_latest() -> None:
    story = an_iterating_story(2)
    story.terminate("b")
    story.obey("a")
    effects = story.enter("a")
    assert [type(e.directive.kind) for e in effects if isinstance(e, fx.Instruct)] == [
        IterationBegin,
        IterationBegin,
    ]


def test_a_report_of_an_earlier_round_counts_for_nothing() -> None:
    story = an_iterating_story(2, restarts_max=1)
    story.agents["a"].round_id = 7
    story.interrupt("a")
    assert story.records(IterationInterrupted) == []


def test_a_run_that_ends_tells_no_iteration_any_more() -> None:
    story = an_iterating_story(2)
    story.beat("b", GroupState.FAILED, workers_alive=0, sequence=1)
    assert isinstance(story.desired("a").state, Stop)
    story.interrupt("a")
    story.back("a")
    assert story.of(fx.Instruct) == []
    assert len(story.records(IterationInterrupted)) == 0


# Losses.


def test_a_lost_host_is_given_up_and_the_iteration_goes_on_without_it() -> None:
    story = an_iterating_story(3)
    story.leave("b")
    (removed,) = story.records(AgentRemoved)
    assert removed.is_excused
    go_on(story)
    assert story.state().phase is Phase.RUNNING
    assert story.state().given_up == {"b.1"}
    assert story.records(RoundEnded) == []
    story.complete("a")
    story.complete("c")
    story.obey_all()
    story.succeed("a")
    story.succeed("c")
    assert story.verdict("a").reason.startswith(
        "2 of 3 workers succeeded, without 1 lost in process, all of b among them;"
    )


def test_who_was_given_up_stands_by_when_it_comes_back_as_the_same() -> None:
    story = an_iterating_story(3)
    story.break_session("b")
    story.advance(1)
    assert story.state().given_up == {"b.1"}
    story.agents["b"].state = GroupState.IDLE
    story.agents["b"].round_id = story.agents["b"].inprocess = None
    story.back("b")
    assert isinstance(story.desired("b").state, Standby)
    assert story.of(fx.Instruct) == []
    shown = {agent.host: agent for agent in message(story).agents}
    assert (shown["a"].HasField("seat"), shown["b"].HasField("seat")) == (True, False)
    story.restart()
    for name in "acb":
        story.back(name)
    assert isinstance(story.desired("b").state, Standby)
    assert isinstance(story.desired("a").state, Assignment)


def test_a_host_lost_when_nobody_iterates_ends_the_round_as_ever() -> None:
    story = an_iterating_story(2, 2, agents_min=1)
    story.complete("a")
    story.complete("b")
    story.obey_all()
    story.leave("b")
    (ended,) = story.records(RoundEnded)
    assert ended.cause is RoundEnd.AGENT_LOST


def test_a_round_that_lost_its_only_host_at_the_barrier_waits_for_no_ghost() -> None:
    """The one that entered is lost; the others never were in an iteration."""
    story = a_running_story(2, 2, agents_min=1)
    story.enter("a")
    story.leave("a")
    (removed,) = story.records(AgentRemoved)
    assert not removed.is_excused
    (ended,) = story.records(RoundEnded)
    assert ended.cause is RoundEnd.AGENT_LOST


def test_a_round_that_lost_all_hosts_costs_no_restart() -> None:
    story = an_iterating_story(2, restarts_max=1)
    story.leave("a")
    story.leave("b")
    (ended,) = story.records(RoundEnded)
    assert (ended.cause, story.state().restart_count) == (RoundEnd.AGENT_LOST, 0)
    assert ended.reason.startswith("round 0 lost all hosts: ")


def test_a_host_without_workers_is_not_awaited_and_may_be_lost() -> None:
    story = an_iterating_story(3)
    story.terminate("c")
    go_on(story)
    assert story.state().excused == {"c.1"}
    assert story.state().given_up == set()
    story.beat("c", GroupState.FAILED)  # its word counts for nothing any more
    assert story.records(RoundEnded) == []
    story.complete("a")
    story.complete("b")
    story.obey_all()
    story.leave("c")
    assert story.records(RoundEnded) == []
    assert story.state().given_up == {"c.1"}
    story.succeed("a")
    story.succeed("b")
    assert story.verdict("b").is_success


def test_hosts_whose_workers_have_ended_are_not_awaited_at_the_next_barrier() -> None:
    story = an_iterating_story(2)
    story.complete("a")
    story.complete("b")
    story.obey_all()
    story.succeed("a")
    story.enter("b")
    assert story.records(IterationBegan)[-1].iteration == 1


def test_hosts_that_succeeded_before_anybody_entered_are_not_awaited() -> None:
    story = a_running_story(2)
    story.succeed("b")
    story.enter("a")
    assert len(story.records(IterationBegan)) == 1


def test_late_arrivals_stand_by_or_join_as_ever() -> None:
    story = an_iterating_story(2, 3, agents_min=2, last_call_s=10.0)
    story.join("c")
    assert isinstance(story.desired("c").state, Assignment)
    (ended,) = story.records(RoundEnded)
    assert ended.cause is RoundEnd.AGENT_JOINED
    iterations = story.state().iterations
    assert iterations is not None
    assert iterations.phase is IterationPhase.NONE


def test_a_standby_hears_what_an_iteration_waits_for() -> None:
    story = a_running_story(2)
    story.enter("a")
    story.join("c")
    assert story.standby("c").reason == (
        "round 0 runs on 2 agents; this one stands by; "
        "1 of 2 hosts entered iteration 0, waiting for b, 120 s left"
    )


# Coordinator restarts.


@pytest.mark.parametrize("phase", ["ENTERING", "RUNNING", "COMPLETING", "INTERRUPTED", "COMPLETED"])
def test_a_coordinator_that_comes_back_goes_on_in_every_phase(phase: str) -> None:
    story = a_running_story(2, restarts_max=0)
    story.enter("a")
    if phase != "ENTERING":
        story.enter("b")
        story.obey_all()
    if phase in {"COMPLETING", "COMPLETED"}:
        story.complete("a")
    if phase == "COMPLETED":
        story.complete("b")
        story.obey_all()
    if phase == "INTERRUPTED":
        story.interrupt("b")
        story.obey_all()
        story.enter("a")
    story.restart()
    story.advance(1)
    for name in "ab":
        story.back(name)
    story.obey_all()
    if phase != "COMPLETED":
        if phase in {"ENTERING", "INTERRUPTED"}:
            story.enter("b")
            story.obey_all()
        story.complete("a")
        story.complete("b")
        story.obey_all()
    assert len(story.records(IterationCompleted)) == 1
    story.succeed("a")
    story.succeed("b")
    assert story.verdict("a").is_success


def test_a_coordinator_that_comes_back_tells_who_says_nothing_of_it() -> None:
    story = an_iterating_story(2)
    story.restart()
    story.agents["a"].inprocess = None
    story.back("a")
    (told,) = story.of(fx.Instruct)
    assert isinstance(told.directive.kind, IterationBegin)
