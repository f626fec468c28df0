"""One round's restarts in process: barriers and interruptions."""

from msgspec.structs import replace

from drumbeat.coordinator.core.inprocess.iterations import FAULTS_KEPT_MAX
from drumbeat.coordinator.core.inprocess.rank_rules import SHIFT_RANKS, Cut
from drumbeat.coordinator.core.inprocess.records import (
    InprocessSpec,
    IterationBegan,
    IterationInterrupted,
)
from drumbeat.coordinator.core.inprocess.roster import FAULT_CHARACTERS_MAX
from drumbeat.inprocess import InprocessDirective, IterationInterrupt
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
    a_fault,
    a_running_story,
    an_interrupted_story,
    given_up,
    only,
)
from tests.support.inprocess.rules import active_divisor, active_max, group_sizes

# The barrier.


def test_an_iteration_begins_when_the_last_host_entered() -> None:
    story = IterationStory(2, 1, 1)
    assert story.report("a", 0, ENTERED) == []
    assert story.report("b", 0, ENTERED) == []
    begin = only(story.report("c", 0, ENTERED))
    assert story.journal == [begin]
    assert story.ranks() == {"a": [(0, 0), (1, 1)], "b": [(2, 2)], "c": [(3, 3)]}
    assert (story.begin("b").master_addr, story.begin("b").master_port) == ("10.a", 30_001)
    assert story.journal == [
        IterationBegan(
            round_id=0,
            iteration=0,
            active_world_size=4,
            master_addr="10.a",
            master_port=30_001,
            spec=SPEC,
            reason="3 hosts entered iteration 0",
            at_s=START,
        )
    ]


def test_people_hear_who_is_waited_for_and_how_long() -> None:
    story = IterationStory(1, 1, 1, 1)
    for name in "acd":
        story.report(name, 0, ENTERED)
        story.advance(10)
    story.advance(49)
    why = "3 of 4 hosts entered iteration 0, waiting for b, 41 s left"
    assert (story.wait.reason, story.wait.until) == (why, START + 120)
    assert story.deadline() == START + 120


def test_nothing_is_decided_or_awaited_while_nobody_restarts_in_process() -> None:
    story = IterationStory(1, 1)
    assert story.settle() == []
    assert story.latest is None
    assert story.lose("b") == []
    assert not story.iterations.is_engaged
    assert story.deadline() is None
    assert story.directive("a") is None


def test_who_is_late_for_the_barrier_is_given_up() -> None:
    story = IterationStory(1, 2, 1)
    story.report("a", 0, ENTERED)
    story.report("c", 0, ENTERED)
    assert story.advance(119.9) == []
    begin = only(story.advance(0.1))
    assert isinstance(begin, IterationBegan)
    late = "2 workers on b: BARRIER_TIMEOUT: did not enter iteration 0 within 120 s"
    assert begin.reason == f"2 hosts entered iteration 0; without {late}"
    assert begin.cuts == (Cut(removed=(1, 2)),)
    assert story.ranks() == {"a": [(0, 0)], "b": [], "c": [(1, 1)]}
    assert story.report("b", 0, ENTERED) == []
    assert story.begin("b").seats == ()


def test_a_host_hears_who_takes_no_part_whatever_else_it_is_told() -> None:
    story = IterationStory(1, 2)
    story.report("a", 0, ENTERED)
    story.advance(120)
    told = [story.directive("b")]
    story.report("a", 0, INTERRUPTED, interruptions=(ERROR,))
    told.append(story.directive("b"))
    story.report("a", 1, ENTERED)
    story.report("a", 1, COMPLETED)
    told.append(story.directive("b"))
    assert [directive.terminated for directive in told if directive] == [(0, 1)] * 3
    directive = story.directive("a")
    assert directive is not None
    assert directive.terminated == ()


def test_the_barrier_after_an_interruption_counts_from_it() -> None:
    story = a_running_story(1, 1)
    story.advance(1000)
    story.report("a", 0, INTERRUPTED, interruptions=(ERROR,))
    story.advance(60)
    story.report("a", 1, ENTERED)
    assert story.wait.until == START + 1120


def test_nobody_enters() -> None:
    story = an_interrupted_story(1, 1)
    why = "iteration 0 was interrupted: rank 1 on b: EXCEPTION: ValueError: no loss"
    late = "BARRIER_TIMEOUT: did not enter iteration 1 within 120 s"
    told = f"{why}; without rank 1 on b, rank 0 on a: {late}"
    assert given_up(story.advance(120)) == f"{told}; no worker is left"


def test_a_worker_that_ends_at_the_barrier_is_no_interruption() -> None:
    story = IterationStory(2, 1)
    story.report("a", 0, ENTERED)
    story.report("a", 0, ENTERED, terminated=(KILLED,))
    begin = only(story.report("b", 0, ENTERED))
    assert isinstance(begin, IterationBegan)
    assert begin.master_addr == "10.a"
    without = "without rank 0 on a: TERMINATED: SIGKILL"
    assert begin.reason == f"2 hosts entered iteration 0; {without}"
    assert story.ranks() == {"a": [(0, 0)], "b": [(1, 1)]}


def test_the_leader_is_the_host_of_active_rank_0() -> None:
    story = IterationStory(1, 1)
    story.report("b", 0, ENTERED)
    begin = only(story.report("a", 0, ENTERED, terminated=(KILLED,)))
    assert isinstance(begin, IterationBegan)
    assert begin.master_addr == story.begin("b").master_addr == "10.b"


def test_a_begin_waits_for_its_leaders_port_and_costs_nothing_meanwhile() -> None:
    story = IterationStory(1, 1, 1)
    story.is_portless = True
    assert story.all_report(0, ENTERED) == []
    assert story.wait.reason == "iteration 0 is waiting for a free port of a.1"
    assert story.deadline() is None
    story.advance(500)
    story.lose("a")
    assert story.wait.reason == "iteration 0 is waiting for a free port of b.1"
    story.is_portless = False
    begin = only(story.settle())
    assert isinstance(begin, IterationBegan)
    assert (begin.master_addr, story.state.order) == ("10.b", [1, 2])


def test_standing_by_is_a_matter_of_rules() -> None:
    spec = InprocessSpec(rules=(SHIFT_RANKS, active_max(2), active_divisor(2)))
    story = a_running_story(2, 2, spec=spec)
    assert story.ranks() == {"a": [(0, 0), (1, 1)], "b": [(2, None), (3, None)]}
    assert story.begin("b").active_world_size == 2
    story.report("a", 0, INTERRUPTED, interruptions=(KILLED,), terminated=(KILLED,))
    story.all_report(1, ENTERED)
    assert story.ranks() == {"a": [(0, 0)], "b": [(1, 1), (2, None)]}


def test_groups_come_with_the_reports() -> None:
    spec = InprocessSpec(rules=(group_sizes([2]), SHIFT_RANKS))
    story = IterationStory(2, 2, spec=spec)
    dead = replace(KILLED, local_rank=1)
    story.report("a", 0, ENTERED, groups=("x", "y"), terminated=(dead,))
    begin = only(story.report("b", 0, ENTERED, groups=("y", "y", "too many")))
    assert isinstance(begin, IterationBegan)
    discarded = "DISCARDED: its group 'x' has a size that is not allowed"
    why = "2 hosts entered iteration 0; without rank 1 on a: TERMINATED: SIGKILL"
    assert begin.reason == f"{why}, rank 0 on a: {discarded}"
    assert story.ranks() == {"a": [], "b": [(0, 0), (1, 1)]}


# Interruptions.


def test_an_interruption_interrupts_everybody_at_once() -> None:
    story = a_running_story(2, 2)
    interrupt = only(story.report("b", 0, INTERRUPTED, interruptions=(ERROR,)))
    reason = "iteration 0 was interrupted: rank 2 on b: EXCEPTION: ValueError: no loss"
    told = IterationInterrupted(round_id=0, iteration=0, reason=reason, at_s=START)
    assert story.journal[-1] == interrupt == told
    for name in "ab":
        assert story.directive(name) == InprocessDirective(
            round_id=0, iteration=0, kind=IterationInterrupt(reason=reason)
        )


def test_the_next_iteration_has_all_that_are_left() -> None:
    story = an_interrupted_story(2, 2)
    assert story.report("a", 1, ENTERED, terminated=(KILLED,)) == []
    begin = only(story.report("b", 1, ENTERED))
    assert isinstance(begin, IterationBegan)
    assert (begin.iteration, begin.spec) == (1, None)
    why = "iteration 0 was interrupted: rank 2 on b: EXCEPTION: ValueError: no loss"
    assert begin.reason == f"{why}; without rank 0 on a: TERMINATED: SIGKILL"
    assert story.ranks() == {"a": [(0, 0)], "b": [(1, 1), (2, 2)]}
    assert story.begin("a").master_port == 30_002
    assert story.state.restarted == 1
    assert story.iterations.roster.rank_of("a.1", 0) is None
    assert story.iterations.roster.rank_of("b.1", 1) == 2


def test_a_rank_is_named_as_it_is_in_the_iteration() -> None:
    story = an_interrupted_story(2, 2)
    story.report("a", 1, ENTERED, terminated=(KILLED,))
    story.report("b", 1, ENTERED)
    interrupt = only(story.report("b", 1, INTERRUPTED, interruptions=(ERROR,)))
    assert isinstance(interrupt, IterationInterrupted)
    assert "rank 1 on b" in interrupt.reason


def test_others_that_fail_in_the_last_call_are_told_of_when_the_next_begins() -> None:
    story = an_interrupted_story(1, 1, 1)
    story.advance(1)
    story.report("a", 0, INTERRUPTED, interruptions=(ERROR,))
    story.advance(0.1)
    story.report("c", 0, INTERRUPTED, interruptions=(ERROR,))
    begin = only(story.all_report(1, ENTERED))
    assert isinstance(begin, IterationBegan)
    text = "EXCEPTION: ValueError: no loss"
    both = f"rank 1 on b: {text}; rank 0 on a: {text}"
    assert begin.reason == f"iteration 0 was interrupted: {both}"


def test_what_was_told_already_is_not_told_twice() -> None:
    story = a_running_story(2, 1)
    story.report("a", 0, INTERRUPTED, interruptions=(KILLED,), terminated=(KILLED,))
    begin = only(story.all_report(1, ENTERED))
    assert isinstance(begin, IterationBegan)
    why = "iteration 0 was interrupted: rank 0 on a: TERMINATED: SIGKILL"
    assert begin.reason == f"{why}; without rank 0 on a"


def test_a_terminated_worker_interrupts_whatever_its_host_says_of_the_step() -> None:
    for step in (RUNNING, COMPLETED, ENTERED):
        story = a_running_story(2, 2)
        assert isinstance(
            only(story.report("b", 0, step, terminated=(KILLED,))), IterationInterrupted
        )


def test_a_worker_that_takes_no_part_interrupts_nothing() -> None:
    story = IterationStory(2, 1)
    story.report("a", 0, ENTERED, terminated=(KILLED,))
    story.report("b", 0, ENTERED)
    assert story.report("a", 0, RUNNING, terminated=(KILLED,), interruptions=(KILLED,)) == []


def test_workers_that_do_not_exist_are_ignored() -> None:
    story = a_running_story(1, 1)
    stranger = a_fault(7)
    assert story.report("a", 0, RUNNING, terminated=(stranger,), interruptions=(stranger,)) == []
    assert story.iterations.roster.rank_of("a.1", 7) is None
    assert story.iterations.roster.rank_of("z.1", 0) is None


def test_an_interruption_without_a_worker_says_so() -> None:
    story = a_running_story(1, 1)
    interrupt = only(story.report("b", 0, INTERRUPTED))
    assert isinstance(interrupt, IterationInterrupted)
    assert interrupt.reason == "iteration 0 was interrupted: b did not say why"


def test_who_left_before_is_not_told_of_again() -> None:
    story = an_interrupted_story(2, 1)
    story.report("a", 1, ENTERED, terminated=(KILLED,))
    story.report("b", 1, ENTERED)
    story.report("b", 1, INTERRUPTED, interruptions=(ERROR,))
    begin = only(story.all_report(2, ENTERED))
    assert isinstance(begin, IterationBegan)
    text = "rank 1 on b: EXCEPTION: ValueError: no loss"
    assert begin.reason == f"iteration 1 was interrupted: {text}"


def test_a_host_without_workers_interrupts_nothing_that_has_not_begun() -> None:
    story = an_interrupted_story(1, 1)
    story.report("a", 1, ENTERED)
    begin = only(story.report("b", 1, INTERRUPTED, terminated=(KILLED,)))
    assert isinstance(begin, IterationBegan)
    assert begin.iteration == 1


def test_a_lost_host_interrupts_and_its_workers_are_gone() -> None:
    story = a_running_story(1, 3, 1)
    interrupt = only(story.lose("b", "nothing was heard of it for 5 s"))
    assert isinstance(interrupt, IterationInterrupted)
    lost = "3 workers on b: HOST_LOST: nothing was heard of it for 5 s"
    assert interrupt.reason == f"iteration 0 was interrupted: {lost}"
    story.all_report(1, ENTERED)
    assert story.ranks() == {"a": [(0, 0)], "b": [], "c": [(1, 1)]}
    assert story.report("b", 1, INTERRUPTED, interruptions=(ERROR,)) == []


def test_a_host_lost_after_it_completed_interrupts_too() -> None:
    story = a_running_story(1, 1)
    story.report("a", 0, COMPLETED)
    assert isinstance(only(story.lose("a")), IterationInterrupted)


def test_a_host_lost_at_the_barrier_holds_nobody_up() -> None:
    story = an_interrupted_story(1, 1, 1)
    story.report("a", 1, ENTERED)
    story.report("c", 1, ENTERED)
    assert isinstance(only(story.lose("b")), IterationBegan)


def test_a_report_that_overtook_the_interruption_interrupts() -> None:
    story = a_running_story(1, 1)
    interrupt = only(story.report("a", 1, ENTERED))
    assert isinstance(interrupt, IterationInterrupted)
    assert interrupt.reason == "iteration 0 was interrupted: a entered the next one"
    assert isinstance(only(story.report("b", 1, ENTERED)), IterationBegan)


def test_a_report_that_overtook_the_interruption_says_why() -> None:
    story = a_running_story(1, 1)
    interrupt = only(story.report("a", 1, ENTERED, before=(ERROR,)))
    assert isinstance(interrupt, IterationInterrupted)
    said = ERROR.message.partition("\n")[0]
    why = f"iteration 0 was interrupted: rank 0 on a: EXCEPTION: {said}"
    assert interrupt.reason == why
    assert isinstance(only(story.report("b", 1, ENTERED, before=(ERROR,))), IterationBegan)


def test_an_iteration_can_be_interrupted_before_it_began() -> None:
    story = an_interrupted_story(1, 1)
    story.report("a", 1, ENTERED)
    interrupt = only(story.report("b", 1, INTERRUPTED, interruptions=(ERROR,)))
    assert isinstance(interrupt, IterationInterrupted)
    assert interrupt.iteration == 1
    assert story.report("a", 1, ENTERED) == []
    assert story.report("b", 2, ENTERED) == []
    begin = only(story.report("a", 2, ENTERED))
    assert isinstance(begin, IterationBegan)
    assert begin.iteration == 2


def test_a_host_may_be_two_interruptions_on() -> None:
    story = a_running_story(1, 1)
    both = story.report("b", 1, INTERRUPTED)
    assert [d.iteration for d in both if isinstance(d, IterationInterrupted)] == [0, 1]
    assert story.report("a", 1, ENTERED) == []
    assert isinstance(only(story.all_report(2, ENTERED)), IterationBegan)


def test_so_can_the_first_one_of_a_call() -> None:
    story = IterationStory(1, 1, spec=replace(SPEC, iterations_max=2))
    story.report("a", 0, ENTERED)
    assert isinstance(only(story.report("b", 0, INTERRUPTED)), IterationInterrupted)
    begin = only(story.all_report(1, ENTERED))
    assert isinstance(begin, IterationBegan)
    assert begin.spec is not None
    story.report("a", 1, INTERRUPTED, interruptions=(ERROR,))
    assert "all 2 iterations of the call are used" in given_up(story.all_report(2, ENTERED))


def test_faults_are_bounded_in_number_and_length() -> None:
    story = a_running_story(FAULTS_KEPT_MAX + 10, 1)
    faults = tuple(a_fault(i, message="x" * 10_000) for i in range(FAULTS_KEPT_MAX + 10))
    interrupt = only(story.report("a", 0, INTERRUPTED, interruptions=faults))
    assert isinstance(interrupt, IterationInterrupted)
    assert len(story.iterations._faults) == FAULTS_KEPT_MAX
    assert interrupt.reason.count("x") == 4 * FAULT_CHARACTERS_MAX
    assert interrupt.reason.endswith(f"; {FAULTS_KEPT_MAX - 4} more")
