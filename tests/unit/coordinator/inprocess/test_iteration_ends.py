"""One round's restarts in process: how they end, and what survives a coordinator."""

import pytest
from msgspec.structs import replace

from drumbeat.coordinator.core.inprocess.rank_rules import SHIFT_RANKS
from drumbeat.coordinator.core.inprocess.records import (
    InprocessReport,
    InprocessSpec,
    IterationBegan,
    IterationCompleted,
    IterationInterrupted,
    IterationPhase,
    IterationState,
)
from drumbeat.coordinator.core.phases.rendezvous import GiveUp
from drumbeat.inprocess import InprocessDirective, IterationComplete
from tests.support.inprocess.round import (
    COMPLETED,
    ENTERED,
    ERROR,
    INTERRUPTED,
    KILLED,
    RUNNING,
    SPEC,
    START,
    IterationStory,
    a_running_story,
    an_interrupted_story,
    completed,
    given_up,
    only,
)
from tests.support.inprocess.rules import active_max, group_sizes

# Completion.


def test_an_iteration_is_complete_when_every_host_completed_it() -> None:
    story = a_running_story(2, 1)
    assert story.report("b", 0, COMPLETED) == []
    why = "1 of 2 hosts completed iteration 0, waiting for a, 120 s left"
    assert story.wait.reason == why
    assert story.report("b", 0, COMPLETED) == []
    assert only(story.report("a", 0, COMPLETED)) == completed(story)
    assert story.journal[-1] == IterationCompleted(round_id=0, iteration=0, at_s=START)
    for name in "ab":
        assert story.directive(name) == InprocessDirective(
            round_id=0, iteration=0, kind=IterationComplete()
        )
    assert not story.iterations.is_engaged


def test_a_fault_after_completion_is_outside_the_iteration() -> None:
    story = a_running_story(1, 1)
    story.all_report(0, COMPLETED)
    assert story.report("a", 0, INTERRUPTED, interruptions=(ERROR,)) == []
    assert story.lose("a") == []
    assert story.directive("b") == InprocessDirective(
        round_id=0, iteration=0, kind=IterationComplete()
    )


def test_who_completed_is_interrupted_like_the_others() -> None:
    story = a_running_story(1, 1)
    story.report("a", 0, COMPLETED)
    assert isinstance(
        only(story.report("b", 0, INTERRUPTED, interruptions=(ERROR,))), IterationInterrupted
    )
    assert story.all_report(0, COMPLETED) == []
    assert isinstance(only(story.all_report(1, ENTERED)), IterationBegan)


def test_completion_has_its_time() -> None:
    story = a_running_story(1, 1, 1)
    story.advance(1000)
    story.report("b", 0, COMPLETED)
    assert story.advance(119.9) == []
    interrupt = only(story.advance(0.1))
    assert isinstance(interrupt, IterationInterrupted)
    late = "not completed by a, c within 120 s of the first that did"
    assert interrupt.reason == f"iteration 0 was interrupted: {late}"


def test_the_time_for_completion_counts_anew_in_each_iteration() -> None:
    story = a_running_story(1, 1)
    story.report("a", 0, COMPLETED)
    story.report("b", 0, INTERRUPTED, interruptions=(ERROR,))
    story.all_report(1, ENTERED)
    assert story.advance(1000) == []
    assert story.report("a", 1, COMPLETED) == []
    assert story.wait.until == START + 1120


def test_another_call_goes_on_counting_and_may_have_another_spec() -> None:
    story = a_running_story(1, 1, spec=replace(SPEC, iterations_max=1))
    story.all_report(0, COMPLETED)
    story.spec = replace(SPEC, iterations_max=2)
    begin = only(story.all_report(1, ENTERED))
    assert isinstance(begin, IterationBegan)
    assert (begin.iteration, begin.spec) == (1, story.spec)
    assert (story.state.call_first, story.state.restarted) == (1, 0)
    story.report("a", 1, INTERRUPTED, interruptions=(ERROR,))
    assert isinstance(only(story.all_report(2, ENTERED)), IterationBegan)


# What can't go on.


def test_too_few_are_left() -> None:
    story = an_interrupted_story(1, 2, spec=replace(SPEC, world_size_min=3))
    story.report("b", 1, ENTERED, terminated=(KILLED,))
    (give_up,) = story.report("a", 1, ENTERED)
    why = "iteration 0 was interrupted: rank 1 on b: EXCEPTION: ValueError: no loss"
    assert isinstance(give_up, GiveUp)
    assert (
        give_up.reason == f"{why}; without rank 1 on b; 2 workers left, at least 3 must take part"
    )
    assert story.settle() == []
    assert story.latest is give_up
    assert story.deadline() is None


def test_all_hosts_are_lost() -> None:
    story = a_running_story(1, 1)
    story.lose("a")
    assert given_up(story.lose("b")).endswith("; no worker is left")


@pytest.mark.parametrize("first", [0, 1])
def test_all_workers_end_before_the_iteration_begins(first: int) -> None:
    """Nobody is left who could enter, and nobody else would decide on those who ended."""
    story = IterationStory(1) if first == 0 else a_running_story(1)
    if first:
        story.all_report(0, COMPLETED)
    assert not story.iterations.is_engaged
    reason = given_up(story.report("a", first, INTERRUPTED, terminated=(KILLED,)))
    assert reason.endswith("without rank 0 on a: TERMINATED: SIGKILL; no worker is left")


def test_iterations_of_a_call_can_be_used_up() -> None:
    story = an_interrupted_story(1, 1, spec=replace(SPEC, iterations_max=1))
    why = "iteration 0 was interrupted: rank 1 on b: EXCEPTION: ValueError: no loss"
    spent = "all 1 iterations of the call are used"
    assert given_up(story.all_report(1, ENTERED)) == f"{why}; {spent}"


def test_workers_that_disagree_are_given_up_and_the_fields_are_named() -> None:
    story = IterationStory(1, 1)
    story.report("a", 0, ENTERED)
    other = replace(SPEC, barrier_timeout_s=60.0, rules=(SHIFT_RANKS, active_max(2)))
    reason = given_up(story.report("b", 0, ENTERED, spec=other))
    assert reason == (
        "workers disagree on how to restart in process: "
        "rules [SHIFT, ACTIVE_MAX 2] on b, [SHIFT] on a; "
        "barrier_timeout_s 60 on b, 120 on a"
    )


def test_a_host_that_is_lost_while_it_waits_alone_leaves_no_trace() -> None:
    story = IterationStory(1, 1, 1)
    story.report("a", 0, ENTERED)
    story.advance(60)
    story.lose("a")
    assert not story.iterations.is_engaged
    story.spec = replace(SPEC, barrier_timeout_s=30.0)
    assert story.report("b", 0, ENTERED) == []
    assert story.wait.until == START + 90


def test_a_call_that_was_interrupted_before_it_began_is_bound_by_no_other() -> None:
    story = a_running_story(1, 1)
    story.all_report(0, COMPLETED)
    story.report("a", 1, INTERRUPTED, interruptions=(ERROR,))
    story.spec = replace(SPEC, world_size_min=1)
    begin = only(story.all_report(2, ENTERED))
    assert isinstance(begin, IterationBegan)
    assert (begin.spec, story.state.call_first) == (story.spec, 1)


def test_a_spec_may_not_change_within_a_call() -> None:
    story = an_interrupted_story(1, 1)
    reason = given_up(story.report("a", 1, ENTERED, spec=replace(SPEC, world_size_min=1)))
    assert reason.endswith("world_size_min 1 on a, 0 in the iteration before")


def test_later_reports_of_a_call_need_no_spec() -> None:
    story = an_interrupted_story(1, 1)
    assert isinstance(only(story.all_report(1, ENTERED)), IterationBegan)
    story = IterationStory(1, 1)
    assert story.report("a", 0, ENTERED, spec=None) == []
    assert isinstance(only(story.report("b", 0, ENTERED)), IterationBegan)


@pytest.mark.parametrize(
    ("iteration", "step"), [(2, ENTERED), (1, RUNNING), (1, COMPLETED), (7, INTERRUPTED)]
)
def test_a_host_that_is_ahead_of_what_began_ends_it(iteration: int, step: object) -> None:
    story = a_running_story(1, 1)
    reason = given_up(story.report("a", iteration, step))  # type: ignore[arg-type]
    assert reason == (
        f"a is {step} in iteration {iteration}, but the next one to begin is 1: "
        "the round's state was lost"
    )


# Repetition, fences, and a coordinator that dies.


def test_repeated_and_old_reports_change_nothing() -> None:
    story = an_interrupted_story(1, 1)
    old = [("a", 0, ENTERED), ("a", 0, RUNNING), ("a", 0, COMPLETED), ("b", 0, INTERRUPTED)]
    for name, iteration, step in old:
        assert story.report(name, iteration, step) == []
    story.report("a", 1, ENTERED)
    assert story.report("a", 1, ENTERED) == []
    story.report("b", 1, ENTERED)
    for name, iteration, step in old:
        assert story.report(name, iteration, step) == []
    assert story.deliver("z", InprocessReport(iteration=9, step=RUNNING)) == []


def test_a_begin_that_was_journaled_is_delivered_again_identically() -> None:
    spec = InprocessSpec(rules=(group_sizes([2]), SHIFT_RANKS, active_max(3)))
    story = IterationStory(2, 2, 2, spec=spec)
    story.report("a", 0, ENTERED, groups=("x", "x"))
    story.report("c", 0, ENTERED, groups=("y", "y"))
    story.report("b", 0, ENTERED, groups=("z", "z"), terminated=(KILLED,))
    told = [story.directive(name) for name in "abc"]
    assert story.restart() == []
    assert [story.directive(name) for name in "abc"] == told
    assert story.ranks() == {"a": [(0, 0), (1, 1)], "b": [], "c": [(2, 2), (3, None)]}


def test_a_restarted_coordinator_waits_for_all_to_report_again() -> None:
    story = an_interrupted_story(1, 1)
    story.report("a", 1, ENTERED)
    story.advance(100)
    assert story.restart() == []
    assert story.wait.until == START + 220
    assert story.report("b", 1, ENTERED) == []
    begin = only(story.report("a", 1, ENTERED, spec=None))
    assert isinstance(begin, IterationBegan)
    why = "iteration 0 was interrupted: rank 1 on b: EXCEPTION: ValueError: no loss"
    assert begin.reason == why


def test_completions_are_counted_anew_after_a_restart() -> None:
    story = a_running_story(1, 1)
    story.report("a", 0, COMPLETED)
    story.restart()
    assert story.report("b", 0, COMPLETED) == []
    assert only(story.report("a", 0, COMPLETED)) == completed(story)


def test_a_host_lost_before_a_restart_interrupts_after_it() -> None:
    story = a_running_story(1, 1)
    story.lost.add("b")
    interrupt = only(story.restart())
    assert isinstance(interrupt, IterationInterrupted)
    assert interrupt.reason == "iteration 0 was interrupted: rank 1 on b: HOST_LOST: it was lost"


@pytest.mark.parametrize(
    "record",
    [
        IterationCompleted(round_id=0, iteration=0),
        IterationInterrupted(round_id=0, iteration=1),
        IterationInterrupted(round_id=1, iteration=0),
        IterationBegan(round_id=0, iteration=2, active_world_size=1, master_addr="", master_port=1),
    ],
)
def test_records_that_can_not_follow_are_refused(record: IterationCompleted) -> None:
    state = IterationState(round_id=0, world_size=1)
    with pytest.raises(ValueError, match="can't follow iteration -1 of round 0, NONE"):
        state.apply(record)
    assert state == IterationState(round_id=0, world_size=1)
    assert state.phase is IterationPhase.NONE
