"""One round's restarts in process, where workers of one host fare differently."""

import dataclasses

from msgspec.structs import replace

from drumbeat.coordinator.core.inprocess.rank_rules import SHIFT_RANKS
from drumbeat.coordinator.core.inprocess.records import (
    IterationBegan,
    IterationInterrupted,
)
from drumbeat.coordinator.core.inprocess.roster import Roster
from drumbeat.coordinator.core.phases.ranks import assign_seats
from drumbeat.coordinator.core.phases.rendezvous import GiveUp, Wait
from drumbeat.inprocess import InprocessStep, InterruptionKind
from tests.support.inprocess.round import (
    COMPLETED,
    ENTERED,
    ERROR,
    INTERRUPTED,
    KILLED,
    RUNNING,
    SPEC,
    IterationStory,
    a_fault,
    a_round,
    a_running_story,
    completed,
    only,
)
from tests.support.inprocess.rules import active_max
from tests.support.world import an_agent

OUTSIDE = InprocessStep.OUTSIDE
EXIT = InterruptionKind.EXITED

# Who is late.


def test_only_the_worker_that_is_late_for_the_barrier_is_given_up() -> None:
    story = a_running_story(2, 1)
    story.report("a", 0, INTERRUPTED, interruptions=(ERROR,))
    story.report("b", 1, ENTERED)
    assert story.report("a", 0, INTERRUPTED, interruptions=(ERROR,), ahead=(0,)) == []
    assert story.wait.reason == (
        "1 of 2 hosts entered iteration 1, waiting for rank 1 on a, 120 s left"
    )
    begin = only(story.advance(120))
    assert isinstance(begin, IterationBegan)
    assert len(story.state.order) == 2
    assert story.ranks() == {"a": [(0, 0)], "b": [(1, 1)]}
    assert "without rank 1 on a: BARRIER_TIMEOUT" in begin.reason
    directive = story.directive("a")
    assert directive is not None
    assert directive.terminated == (1,)


def test_a_worker_that_never_calls_the_function_is_waited_for_aloud_and_not_for_ever() -> None:
    """Also if all are on one host."""
    story = IterationStory(2)
    assert not story.iterations.is_engaged
    assert story.report("a", 0, OUTSIDE, spec=SPEC, ahead=(1,)) == []
    assert story.iterations.is_engaged
    assert story.wait.reason == (
        "0 of 1 host entered iteration 0, waiting for rank 0 on a, 120 s left"
    )
    story.advance(50)
    assert story.report("a", 0, OUTSIDE, spec=SPEC, ahead=(1,)) == [], "repeated"
    begin = only(story.advance(70))
    assert isinstance(begin, IterationBegan)
    assert story.ranks() == {"a": [(0, 0)]}


def test_a_call_that_only_some_make_again_is_waited_for_as_well() -> None:
    story = a_running_story(2)
    story.report("a", 0, COMPLETED)
    assert story.report("a", 0, COMPLETED, spec=SPEC, ahead=(0,)) == []
    assert isinstance(only(story.advance(120)), IterationBegan)


def test_a_worker_that_enters_late_but_in_time_is_not_given_up() -> None:
    story = IterationStory(2)
    story.report("a", 0, OUTSIDE, spec=SPEC, ahead=(1,))
    story.advance(119)
    begin = only(story.report("a", 0, ENTERED))
    assert isinstance(begin, IterationBegan)
    assert len(story.state.order) == 2
    assert story.report("a", 0, OUTSIDE, spec=SPEC, ahead=(1,)) == [], "an old report"


def test_groups_are_known_of_workers_that_came_before_others_of_their_host() -> None:
    story = IterationStory(2, 1)
    story.report("a", 0, OUTSIDE, spec=SPEC, ahead=(1,), groups=("", "x"))
    assert story.iterations._groups[1] == "x"


# Completion.


def test_completion_is_waited_for_from_the_first_worker_on() -> None:
    """All ranks are on one host, and one of them never returns."""
    story = a_running_story(2)
    assert story.report("a", 0, RUNNING, ahead=(0,)) == []
    assert story.wait.reason == (
        "0 of 1 host completed iteration 0, waiting for rank 1 on a, 120 s left"
    )
    interrupt = only(story.advance(120))
    assert isinstance(interrupt, IterationInterrupted)
    late = "not completed by rank 1 on a within 120 s of the first that did"
    assert interrupt.reason == f"iteration 0 was interrupted: {late}"


def test_spares_that_stand_by_do_not_begin_the_wait_for_completion() -> None:
    spec = replace(SPEC, rules=(SHIFT_RANKS, active_max(1)))
    story = a_running_story(1, 1, spec=spec)
    assert story.report("b", 0, COMPLETED) == []
    assert story.latest is None
    assert story.advance(1000) == []
    assert story.report("a", 0, COMPLETED) == [completed(story)]


# Workers that exit and have failed at nothing.


def test_all_that_exit_with_0_have_completed() -> None:
    story = a_running_story(2, 1)
    exits = tuple(a_fault(rank, EXIT, "0") for rank in range(2))
    assert story.report("a", 0, RUNNING, terminated=exits[:1]) == []
    assert isinstance(story.latest, Wait)
    assert story.report("b", 0, COMPLETED, terminated=exits[:1]) == []
    assert story.report("a", 0, COMPLETED, terminated=exits) == [completed(story)]
    assert not story.iterations.is_engaged
    assert story.restart() == []


def test_who_has_returned_and_who_exits_with_0_complete_together() -> None:
    story = a_running_story(1, 1)
    story.report("a", 0, COMPLETED)
    exited = (a_fault(0, EXIT, "0"),)
    assert story.report("b", 0, COMPLETED, terminated=exited) == [completed(story)]


def test_the_others_go_on_without_one_that_exits_with_0() -> None:
    """Once those that do the same at the same time have had a moment."""
    story = a_running_story(1, 1)
    assert story.report("a", 0, COMPLETED, terminated=(a_fault(0, EXIT, "0"),)) == []
    assert isinstance(only(story.advance(SPEC.last_call_wait_s)), IterationInterrupted)
    assert isinstance(only(story.report("b", 1, ENTERED)), IterationBegan)
    exited = (a_fault(0, EXIT, "0"),)
    assert story.report("b", 1, COMPLETED, terminated=exited) == [completed(story, 1)]


def test_a_failure_beside_an_exit_with_0_interrupts_at_once() -> None:
    story = a_running_story(1, 1)
    story.report("a", 0, COMPLETED, terminated=(a_fault(0, EXIT, "0"),))
    decisions = story.report("b", 0, INTERRUPTED, terminated=(KILLED,))
    assert [type(decision) for decision in decisions] == [IterationInterrupted, GiveUp]


def test_the_last_of_an_interrupted_iteration_may_still_exit_with_0() -> None:
    story = a_running_story(1, 1)
    exited = (a_fault(0, EXIT, "0"),)
    story.report("a", 0, COMPLETED, terminated=exited)
    story.advance(SPEC.last_call_wait_s)
    assert story.report("b", 0, COMPLETED, terminated=exited) == [completed(story)]
    assert story.restart() == []


def test_who_has_exited_with_0_is_not_counted_as_lost() -> None:
    story = a_running_story(1, 1, 1)
    story.report("a", 0, COMPLETED, terminated=(a_fault(0, EXIT, "0"),))
    story.advance(SPEC.last_call_wait_s)
    story.report("b", 0, INTERRUPTED, terminated=(KILLED,))
    assert isinstance(only(story.report("c", 1, ENTERED)), IterationBegan)
    assert (story.state.lost, story.state.exited) == (1, 1)


# Roles.


def test_ranks_of_a_role_are_counted_within_it() -> None:
    agents = [an_agent(name, role=role) for name, role in (("a", "x"), ("b", "y"), ("c", "x"))]
    current = replace(a_round(1, 1, 1), seats=assign_seats(agents))
    story = IterationStory(1, 1, 1)
    story.all_report(0, ENTERED)
    roster = Roster(current, [2, 1, 0], 2)
    state = dataclasses.replace(story.state, order=[2, 1, 0], active_world_size=2)
    found = {
        host.agent.host: [
            (s.rank, s.role_rank, s.role_world_size) for s in roster.seats_of(host, state)
        ]
        for host in roster.hosts.values()
    }
    assert found == {"c": [(0, 0, 1)], "b": [(1, 0, 1)], "a": [(2, 1, 2)]}
