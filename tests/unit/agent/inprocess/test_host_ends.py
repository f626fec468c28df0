"""What a host makes of workers that are ahead of it, or end; and of the end of its round."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from drumbeat.agent.core import effects as fx
from drumbeat.agent.core.inprocess.iterations import WONDER_S
from drumbeat.agent.core.model import InprocessReport
from drumbeat.agent.watchdog.hang import Evidence, Purpose
from drumbeat.inprocess import InprocessStep, InterruptionKind
from tests.support.inprocess.values import (
    SPEC,
    a_begin,
    a_complete,
    a_hang,
    an_interrupt,
    breaks,
    completes,
    enters,
    leaves,
    orders,
    why,
)
from tests.unit.agent.inprocess.test_host import GRACE_S, Story, ended

S, K = InprocessStep, InterruptionKind

# Workers that are ahead of their host.


def test_who_has_completed_is_named_while_others_run() -> None:
    story = Story().running()
    story.feed(completes(1, 0))
    assert story.report == InprocessReport(iteration=0, step=S.RUNNING, ahead=(1,))
    assert story.report.news == replace(story.report, ahead=())


def test_a_spare_has_not_completed_anything() -> None:
    story = Story()
    story.feed(enters(0, 0), enters(1, 0), a_begin(0, [0], [1]))
    story.feed(completes(1, 0))
    assert story.report == InprocessReport(iteration=0, step=S.RUNNING)


def test_who_waits_for_the_next_iteration_is_named_with_all_it_brings() -> None:
    story = Story().running()
    story.feed(breaks(1, 0), an_interrupt(0), breaks(0, 0, None), enters(0, 1, group="x"))
    assert story.report == InprocessReport(
        iteration=0,
        step=S.INTERRUPTED,
        interruptions=(why(1),),
        spec=SPEC,
        groups=("x", ""),
        ahead=(0,),
    )
    effects = story.feed(a_begin(1, [0]))
    assert ended(effects) == [(1, 15)], "and no other"
    assert orders(effects) == [(0, 1, "begin 2")]


# An exit with 0.


def test_a_worker_that_exits_with_0_has_failed_at_nothing() -> None:
    story = Story().running()
    story.feed(leaves(0, 0, K.EXITED))
    assert story.at == (0, S.RUNNING)
    assert [left.kind for left in story.report.terminated] == [K.EXITED]
    assert story.ends(0, 0) is None
    story.feed(leaves(1, 0, K.EXITED))
    assert story.at == (0, S.COMPLETED)
    story.feed(a_complete(0))
    assert not story.host.has_failed
    assert not story.host.is_on


def test_one_that_fails_after_it_said_so_has_failed() -> None:
    story = Story().running()
    story.feed(leaves(0, 0, K.EXITED))
    fault = story.ends(0, 3)
    assert fault is not None
    assert fault.interruption.kind is K.TERMINATED
    story.feed(leaves(1, 0, K.EXITED), a_complete(0))
    assert story.host.has_failed


# The end of a round.


def test_workers_that_wait_are_told_that_no_iteration_follows() -> None:
    story = Story().running()
    story.feed(breaks(1, 0), an_interrupt(0), breaks(0, 0, None), enters(0, 1))
    told = story.host.dismiss("too few", now=story.now)
    assert told is not None
    assert orders(told) == [(0, 1, "abort: too few"), (1, 0, "abort: too few")]
    assert story.host.dismiss("too few", now=story.now) == [], "and have time"
    assert story.host.deadline == story.now + GRACE_S
    assert story.settle() == []
    fault = story.ends(0, 1)
    assert fault is not None
    assert fault.is_victim
    assert story.host.dismiss("too few", now=story.now + GRACE_S) is None, "which ends"


def test_workers_that_have_left_are_given_time_as_well_and_no_longer_than_they_need() -> None:
    story = Story().running()
    story.feed(leaves(0, 0), leaves(1, 0, K.EXITED))
    assert story.host.dismiss("all left", now=story.now) == []
    story.ends(0, 1)
    assert story.host.deadline == story.now + GRACE_S
    story.ends(1, 0)
    assert story.host.deadline is None, "or it would be due for ever"
    assert story.host.dismiss("all left", now=story.now) is None


@pytest.mark.parametrize("others", [(), (completes(1, 0), a_complete(0))])
def test_workers_that_do_anything_else_are_stopped_at_once(others: tuple[Any, ...]) -> None:
    story = Story().running()
    story.feed(*others)
    assert story.host.dismiss("why", now=story.now) is None


# What people are told.


def told(effects: list[fx.Effect]) -> list[tuple[str, str, str]]:
    return [(e.what, e.why, e.details) for e in effects if isinstance(e, fx.Tell)]


def test_a_restart_that_works_is_one_line_with_who_what_and_how_long() -> None:
    """And the traceback, where it happened."""
    story = Story().running()
    boom = replace(why(1), traceback="Traceback: boom\n")
    effects = story.feed(replace(breaks(1, 0), interruption=boom))
    story.now += 0.25
    effects += story.feed(an_interrupt(0, "rank 3 on h: boom"), breaks(0, 0, None))
    story.now += 0.25
    effects += story.feed(enters(0, 1), enters(1, 1), a_begin(1), a_begin(1))
    assert told(effects) == [
        (
            "restarted in process",
            "rank 3 on h: boom; iteration 1 began 0.50 s later",
            "local rank 1:\nTraceback: boom",
        )
    ]
    assert told(story.feed(completes(0, 1), completes(1, 1), a_complete(1))) == []


def test_an_interruption_is_told_by_itself_if_no_iteration_follows_for_long() -> None:
    story = Story().running()
    story.feed(an_interrupt(0, "rank 3 on h: boom"), breaks(0, 0, None), breaks(1, 0, None))
    assert story.host.deadline == story.now + WONDER_S
    story.now += WONDER_S
    assert told(story.settle()) == [("iteration interrupted", "rank 3 on h: boom", "")]
    assert told(story.settle()) == []
    assert story.host.deadline is None
    story.now += 5
    (line,) = told(story.feed(enters(0, 1), enters(1, 1), a_begin(1)))
    assert line[:2] == ("restarted in process", "iteration 1 began 7.00 s later")


def test_a_worker_that_hung_is_told_with_its_stacks() -> None:
    story = Story().running()
    hang = a_hang("x", purpose=Purpose.HARD_TIMEOUT)
    story.ends(1, -9, hang=replace(hang, evidence=Evidence(stacks="File a.py")))
    effects = story.feed(an_interrupt(0), breaks(0, 0, None), enters(0, 1), a_begin(1, [0]))
    assert [details for _, _, details in told(effects)] == ["local rank 1:\nFile a.py"]


def test_whom_an_iteration_waits_for_is_told_at_growing_intervals() -> None:
    story = Story(3)
    story.feed(enters(1, 0))
    lines: list[tuple[float, str]] = []
    began = story.now
    while (due := story.host.deadline) is not None and due < began + 60:
        story.now = due
        lines += [(story.now - began, why) for _, why, _ in told(story.settle())]
    assert [at for at, _ in lines] == [2, 4, 8, 16, 32]
    assert lines[0][1] == (
        "iteration 0 waits for local ranks 0, 2, which never called the function, 2 s so far"
    )
    story.feed(enters(0, 0), enters(2, 0))
    story.now = began + 64
    (line,) = told(story.settle())
    assert line[1].startswith("iteration 0 has yet to begin, all of this host have entered it")
    story.feed(a_begin(0, [0, 1, 2]))
    assert story.host.deadline is None
