"""What a host makes of its workers' steps and the coordinator's directives."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from drumbeat.agent.core import effects as fx
from drumbeat.agent.core.events import WorkerStep
from drumbeat.agent.core.inprocess.iterations import HostIterations
from drumbeat.agent.core.inprocess.worker import REPORTED_CHARACTERS_MAX, Fault
from drumbeat.agent.core.model import InprocessReport
from drumbeat.agent.watchdog.hang import Purpose
from drumbeat.inprocess import InprocessDirective, InprocessStep, InterruptionKind
from tests.support.agents import CONFIG
from tests.support.inprocess.values import (
    OTHER_SPEC,
    SPEC,
    a_begin,
    a_complete,
    a_hang,
    an_interrupt,
    breaks,
    completes,
    enters,
    exits,
    leaves,
    orders,
    why,
)

S, K = InprocessStep, InterruptionKind
GRACE_S = 30.0


class Story:
    """A host's part in round 0, with a clock that the test moves."""

    def __init__(self, workers: int = 2, *, is_started: bool = True) -> None:
        self.host = HostIterations(
            dataclasses.replace(CONFIG, nproc_per_node=workers, shutdown_timeout=GRACE_S)
        )
        self.host.begin_round(0)
        self.now = 100.0
        self.faults: list[Fault] = []
        if is_started:
            self.host.started({rank: 70 + rank for rank in range(workers)})

    def feed(self, *events: WorkerStep | InprocessDirective) -> list[fx.Effect]:
        effects: list[fx.Effect] = []
        for event in events:
            if isinstance(event, InprocessDirective):
                effects += self.host.directed(event, now=self.now)
            elif (fault := self.host.step_taken(event, now=self.now)) is not None:
                self.faults.append(fault)
            effects += self.settle()
        return effects

    def settle(self) -> list[fx.Effect]:
        effects = self.host.settle(now=self.now)
        self.host.check_invariants()
        return effects

    def ends(self, local_rank: int, code: int = 1, **more: object) -> Fault | None:
        fault = self.host.exited(exits(local_rank, code, **more))
        self.settle()
        return fault

    @property
    def report(self) -> InprocessReport:
        assert self.host.report is not None, "nothing is reported"
        return self.host.report

    @property
    def at(self) -> tuple[int, InprocessStep]:
        return self.report.iteration, self.report.step

    def running(self, iteration: int = 0) -> Story:
        self.feed(enters(0, iteration), enters(1, iteration), a_begin(iteration))
        return self


# Iterations.


def test_a_host_has_entered_when_all_its_workers_have() -> None:
    story = Story()
    story.feed(enters(0, 0))
    waits = InprocessReport(iteration=0, step=S.OUTSIDE, spec=SPEC, ahead=(0,))
    assert story.report == waits
    assert waits.news is None, "no message of its own"
    assert story.host.is_on
    story.feed(enters(1, 0))
    assert story.report == InprocessReport(iteration=0, step=S.ENTERED, spec=SPEC)


def test_a_worker_that_ends_before_it_enters_what_others_are_in_fails_no_round() -> None:
    story = Story()
    story.feed(an_interrupt(0))
    assert story.host.is_on
    fault = story.ends(0)
    assert fault is not None
    assert (fault.iteration, story.report.terminated[0].local_rank) == (0, 0)


def test_two_iterations_to_the_end() -> None:
    story = Story()
    story.feed(enters(0, 0), enters(1, 0))
    assert orders(story.feed(a_begin(0))) == [(0, 0, "begin 2"), (1, 0, "begin 3")]
    assert story.at == (0, S.RUNNING)
    assert story.report.spec is None
    story.feed(breaks(1, 0))
    assert story.at == (0, S.INTERRUPTED)
    assert story.report.interruptions == (why(1),)
    assert orders(story.feed(an_interrupt(0))) == [(0, 0, "interrupt")], "the other knows"
    story.feed(enters(1, 1))
    assert story.at == (0, S.INTERRUPTED), "one still cleans up"
    story.feed(breaks(0, 0, None))
    assert story.at == (0, S.INTERRUPTED)
    story.feed(enters(0, 1))
    assert story.report == InprocessReport(iteration=1, step=S.ENTERED, spec=SPEC)
    story.feed(a_begin(1), completes(0, 1))
    assert story.at == (1, S.RUNNING)
    story.feed(completes(1, 1))
    assert story.at == (1, S.COMPLETED)
    assert story.host.is_on
    assert orders(story.feed(a_complete(1))) == [(0, 1, "complete"), (1, 1, "complete")]
    assert not story.host.is_on
    story.feed(enters(0, 2))
    assert story.host.is_on, "the next call"
    assert story.at == (1, S.COMPLETED)
    story.feed(enters(1, 2))
    assert story.at == (2, S.ENTERED)


def test_what_is_repeated_or_late_changes_nothing() -> None:
    story = Story().running()
    story.feed(breaks(1, 0), an_interrupt(0))
    before = story.report
    repeated: list[WorkerStep | InprocessDirective] = [
        breaks(1, 0),
        breaks(1, 0, message="again"),
        a_begin(0),
        an_interrupt(0, "another reason"),
        completes(1, 0),
        enters(1, 0),
        completes(0, 7),
        breaks(0, 7),
        enters(0, 0, round_id=9),
        an_interrupt(5, round_id=-1),
    ]
    assert story.feed(*repeated) == []
    assert story.report == before
    assert len(story.faults) == 1


def test_an_order_is_given_to_those_that_come_to_need_it() -> None:
    story = Story().running()
    story.feed(completes(0, 0), breaks(1, 0))
    assert orders(story.feed(an_interrupt(0))) == [(0, 0, "interrupt")]
    story.feed(enters(0, 1), enters(1, 1), a_begin(1))
    story.feed(an_interrupt(1), breaks(0, 1, None), breaks(1, 1, None))
    # Interrupted elsewhere before it began, and these two have not even entered.
    assert orders(story.feed(an_interrupt(2))) == []
    assert orders(story.feed(enters(0, 2))) == [(0, 2, "interrupt")]
    assert orders(story.feed(completes(0, 2))) == [], "it never began"
    # One that was slow while two were given up has to come out of the first of them.
    story.feed(an_interrupt(3))
    assert orders(story.feed(enters(1, 2))) == [(1, 2, "interrupt")]


def test_a_worker_that_completes_before_it_hears_of_the_interruption_is_told_again() -> None:
    story = Story().running()
    assert orders(story.feed(an_interrupt(0))) == [(0, 0, "interrupt"), (1, 0, "interrupt")]
    assert orders(story.feed(completes(0, 0))) == [(0, 0, "interrupt")]
    assert orders(story.feed(breaks(0, 0, None))) == []
    assert story.at == (0, S.INTERRUPTED)


def test_an_iteration_that_a_worker_has_left_is_interrupted_even_if_it_did_not_say_so() -> None:
    story = Story().running()
    story.feed(enters(0, 1))
    assert story.at == (0, S.INTERRUPTED)
    assert story.report.interruptions == ()


def test_one_interruption_of_each_worker_counts() -> None:
    story = Story().running()
    story.feed(breaks(1, 0, K.SOFT_TIMEOUT, "slow"), breaks(0, 0), breaks(1, 0, message="late"))
    assert story.report.interruptions == (why(1, K.SOFT_TIMEOUT, "slow"), why(0))
    assert [fault.interruption.message for fault in story.faults] == ["slow", "boom"]


def test_a_cause_counts_after_the_worker_was_only_said_to_have_heard() -> None:
    story = Story().running()
    story.feed(breaks(1, 0, None), breaks(1, 0))
    assert story.report.interruptions == (why(1),)
    assert len(story.faults) == 1


def test_a_record_names_the_rank_of_the_iteration() -> None:
    story = Story()
    story.feed(enters(0, 0), enters(1, 0), a_begin(0, rank_first=40), breaks(1, 0))
    [fault] = story.faults
    assert fault == Fault(interruption=why(1), iteration=0, at=100.0, rank=41, pid=71)


def test_reports_are_short() -> None:
    story = Story().running()
    story.feed(breaks(0, 0, message="x" * 5_000))
    assert story.report.interruptions == (why(0, message="x" * REPORTED_CHARACTERS_MAX),)
    assert len(story.faults[0].interruption.message) == 5_000


# Spares and groups.


def test_a_spare_completes_with_those_that_are_active() -> None:
    story = Story()
    story.feed(enters(0, 0), enters(1, 0))
    assert orders(story.feed(a_begin(0, [1], [0]))) == [(0, 0, "stand by 3"), (1, 0, "begin 2")]
    assert story.at == (0, S.RUNNING)
    story.feed(completes(1, 0))
    assert story.at == (0, S.COMPLETED)
    assert orders(story.feed(a_complete(0))) == [(1, 0, "complete")]
    assert orders(story.feed(completes(0, 0))) == [(0, 0, "complete")], "it waits from now on"


def test_a_host_of_spares_has_completed_at_once() -> None:
    story = Story()
    story.feed(enters(0, 0), enters(1, 0), a_begin(0, [], [0, 1]))
    assert story.at == (0, S.COMPLETED)
    story.feed(breaks(0, 0))
    assert story.at == (0, S.INTERRUPTED), "a spare may fail all the same"


def test_groups_are_told_if_there_are_any() -> None:
    story = Story()
    story.feed(enters(0, 0, group="rack 1"), enters(1, 0))
    assert story.report.groups == ("rack 1", "")


def test_settings_that_differ_end_the_round() -> None:
    story = Story()
    story.feed(enters(0, 0), enters(1, 0, spec=OTHER_SPEC))
    [fault] = story.faults
    assert fault.is_fatal
    assert "differ from those of local rank 0" in fault.interruption.message
    assert story.ends(1, -15, is_stopped=True) is None


# Workers that leave.


def test_who_says_that_it_leaves_is_terminated_at_once_and_written_down_when_it_ends() -> None:
    story = Story().running()
    story.feed(leaves(1, 0, K.UNHEALTHY, "GPU gone"))
    gone = why(1, K.UNHEALTHY, "GPU gone")
    assert story.report == InprocessReport(
        iteration=0, step=S.INTERRUPTED, terminated=(gone,), interruptions=(gone,)
    )
    assert story.faults == []
    story.now = 110.0
    fault = story.ends(1, 1)
    assert fault == Fault(interruption=gone, iteration=0, at=100.0, rank=3, pid=71)
    assert story.ends(1, 1) is None, "once"
    story.feed(an_interrupt(0), enters(0, 1))
    assert story.at == (1, S.ENTERED)
    assert story.report.terminated == (gone,)
    assert story.report.interruptions == ()


def test_an_interruption_that_ends_a_worker_is_its_last_word() -> None:
    story = Story().running()
    story.feed(breaks(1, 0, K.BASE_EXCEPTION))
    assert story.report.terminated == (why(1, K.BASE_EXCEPTION),)
    assert story.faults == []


def test_a_worker_that_ends_by_what_others_survive_has_terminated() -> None:
    story = Story().running()
    story.feed(leaves(1, 0, K.EXCEPTION))
    assert story.report.terminated == (why(1, K.TERMINATED),)


@pytest.mark.parametrize(
    ("ending", "kind", "message"),
    [
        ({"code": -9}, K.TERMINATED, "its process ended: SIGKILL"),
        ({"code": 0}, K.TERMINATED, "it exited with code 0 before the iteration was over"),
        ({"hang": a_hang("x", purpose=Purpose.HARD_TIMEOUT)}, K.HARD_TIMEOUT, "timer"),
        ({"hang": a_hang("x", purpose=Purpose.HEARTBEAT)}, K.UNRESPONSIVE, "timer"),
        ({"hang": a_hang("inprocess hard timeout")}, K.TERMINATED, "timer"),
    ],
)
def test_a_worker_that_ends_by_itself_says_by_that_what_it_was(
    ending: dict[str, Any], kind: InterruptionKind, message: str
) -> None:
    story = Story().running()
    fault = story.ends(1, **ending)
    assert fault is not None
    assert (fault.interruption.kind, fault.iteration, fault.rank) == (kind, 0, 3)
    assert message in fault.interruption.message
    assert fault.at == (98.0 if "hang" in ending else 99.0)
    assert story.at == (0, S.INTERRUPTED)
    assert [left.kind for left in story.report.terminated] == [kind]
    assert story.report.interruptions == story.report.terminated


def test_who_dies_while_it_waits_interrupts_nothing() -> None:
    story = Story()
    story.feed(enters(0, 0), enters(1, 0))
    assert story.ends(1) is not None
    assert story.at == (0, S.ENTERED)
    assert [left.local_rank for left in story.report.terminated] == [1]
    # The coordinator could not know yet.
    assert orders(story.feed(a_begin(0))) == [(0, 0, "begin 2")]
    assert story.at == (0, S.INTERRUPTED)
    assert [broken.local_rank for broken in story.report.interruptions] == [1]


def test_who_dies_before_it_has_entered_is_not_waited_for() -> None:
    story = Story()
    story.feed(enters(0, 0))
    fault = story.ends(1)
    assert fault is not None
    assert fault.iteration == 0
    assert story.at == (0, S.ENTERED)


def test_a_host_without_workers_says_so() -> None:
    story = Story()
    story.feed(enters(0, 0))
    story.ends(0)
    story.ends(1)
    assert story.at == (0, S.INTERRUPTED)
    assert [left.local_rank for left in story.report.terminated] == [0, 1]
    assert story.host.is_on, "others may go on, so this is neither good nor bad"


def test_an_end_after_the_call_is_no_matter_of_it() -> None:
    story = Story().running()
    story.feed(completes(0, 0), completes(1, 0), a_complete(0), leaves(0, 0))
    assert story.ends(0, 1) is None
    assert story.at == (0, S.COMPLETED)
    assert [left.message for left in story.report.terminated] == [
        "it ended outside of an iteration: exit code 1"
    ]


def test_who_is_done_may_go_while_others_call_again() -> None:
    story = Story().running()
    story.feed(completes(0, 0), completes(1, 0), a_complete(0), enters(0, 1))
    assert story.ends(1, 0) is None
    assert story.at == (1, S.ENTERED)
    assert [left.local_rank for left in story.report.terminated] == [1]


def test_who_dies_while_others_call_again_is_terminated() -> None:
    story = Story().running()
    story.feed(completes(0, 0), completes(1, 0), a_complete(0), enters(0, 1))
    fault = story.ends(1, 1)
    assert fault is not None
    assert fault.iteration == 1
    assert story.at == (1, S.ENTERED)


def test_who_is_being_stopped_ends_as_it_was_asked_to() -> None:
    story = Story().running()
    story.feed(leaves(1, 0))
    story.host.stopping()
    assert story.feed(breaks(0, 0), an_interrupt(0)) == []
    assert story.faults == []
    assert story.ends(0, -15, is_stopped=True) is None
    assert story.ends(1, -15, is_stopped=True) is not None, "it had left before"
    assert not story.host.is_on


# Workers that are given up.


def ended(effects: list[fx.Effect]) -> list[tuple[int, int]]:
    ends = [e for e in effects if isinstance(e, fx.SignalWorkers)]
    return [(e.local_rank, e.signum) for e in ends if e.local_rank is not None]


def test_a_worker_without_a_seat_is_ended_in_the_end_by_force() -> None:
    story = Story()
    story.feed(enters(0, 0), enters(1, 0))
    effects = story.feed(a_begin(0, [0]))
    assert ended(effects) == [(1, 15)]
    assert orders(effects) == [(0, 0, "begin 2")]
    assert [left.kind for left in story.report.terminated] == [K.DISCARDED]
    assert story.at == (0, S.RUNNING), "it was not counted on"
    assert story.host.deadline == story.now + GRACE_S
    story.now += GRACE_S
    assert ended(story.settle()) == [(1, 9)]
    assert story.host.deadline is None
    fault = story.ends(1, -9)
    assert fault is not None
    assert fault.is_victim
    story.feed(completes(0, 0))
    assert story.at == (0, S.COMPLETED)


def test_a_host_that_is_late_is_ended() -> None:
    story = Story()
    story.feed(enters(0, 0))
    assert ended(story.feed(a_begin(0, []))) == [(0, 15), (1, 15)]
    kinds = [left.kind for left in story.report.terminated]
    assert kinds == [K.DISCARDED, K.BARRIER_TIMEOUT]
    faults = [story.ends(rank, -15) for rank in (0, 1)]
    assert [fault.is_victim for fault in faults if fault] == [True, False]
    assert story.host.deadline is None
    assert story.at == (0, S.INTERRUPTED)


@pytest.mark.parametrize("directive", [an_interrupt(1), a_complete(1)])
def test_who_takes_no_part_any_more_is_ended_even_if_the_begin_that_said_so_was_replaced(
    directive: InprocessDirective,
) -> None:
    """Whatever iteration it has come to meanwhile: it would wait there for ever."""
    story = Story()
    story.feed(enters(0, 2), enters(1, 2))
    effects = story.feed(replace(directive, terminated=(1,)))
    assert ended(effects) == [(1, 15)]
    assert [left.local_rank for left in story.report.terminated] == [1]


@pytest.mark.parametrize("entered", [[], [enters(1, 0)]])
def test_who_missed_an_iteration_that_is_complete_is_ended(
    entered: list[WorkerStep],
) -> None:
    story = Story()
    story.feed(*entered)
    assert ended(story.feed(a_complete(0))) == [(0, 15), (1, 15)]


def test_a_directive_may_come_before_the_workers() -> None:
    story = Story(is_started=False)
    early = a_begin(0, [], round_id=3)
    assert story.feed(early) == []
    story.host.begin_round(3)
    assert story.settle() == []
    assert not story.host.is_on
    story.host.started({0: 7, 1: 8})
    assert ended(story.settle()) == [(0, 15), (1, 15)]


def test_a_new_round_begins_anew() -> None:
    story = Story().running()
    story.feed(leaves(1, 0), a_complete(0))
    story.host.begin_round(1)
    story.settle()
    assert story.host.report is None
    assert not story.host.is_on
    story.host.started({0: 7, 1: 8})
    story.feed(enters(0, 0, round_id=1), enters(1, 0, round_id=1))
    assert story.at == (0, S.ENTERED)
    assert story.report.terminated == ()
