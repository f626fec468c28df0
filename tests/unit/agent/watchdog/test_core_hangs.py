"""What is done about a worker that hangs: evidence, signals, debuggers."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from drumbeat.agent.watchdog.core import model as fx
from drumbeat.agent.watchdog.core.model import (
    AUTO,
    BoardRead,
    EvidenceTaken,
    LimitsLearned,
    TimerAcquired,
    TimerReleased,
    WorkerGone,
)
from drumbeat.agent.watchdog.core.watchdog import EVIDENCE_LATE_S
from drumbeat.agent.watchdog.hang import Evidence, HangKind
from tests.support.watching import NOW, WORKER, WatchStory, a_board, a_slot

SIGUSR1, SIGTERM, SIGKILL = 10, 15, 9


def hanging(kill_grace_s: float = 5.0) -> WatchStory:
    """Return a story in which the worker has just got SIGTERM, 2 s after ``NOW``."""
    story = WatchStory(kill_grace_s=kill_grace_s)
    story.kick(a_board(a_slot(limit_s=2.0)))
    story.run(NOW + 2)
    assert story.signals() == [(0, SIGTERM)]
    return story


def test_sigkill_follows_after_the_grace() -> None:
    story = hanging(kill_grace_s=3.25)
    story.run(NOW + 5.2)
    assert story.signals() == [(0, SIGTERM)]
    story.run(NOW + 5.25)
    assert story.signals() == [(0, SIGTERM), (0, SIGKILL)]
    story.run(NOW + 1000)
    assert story.signals() == [(0, SIGTERM), (0, SIGKILL)], "once is enough"


def test_a_worker_that_ends_within_the_grace_is_not_killed() -> None:
    story = hanging()
    story.feed(WorkerGone(worker=WORKER))
    story.run(NOW + 1000)
    assert story.signals() == [(0, SIGTERM)]


def test_what_else_runs_out_changes_nothing_while_a_worker_is_killed() -> None:
    story = hanging()
    story.feed(TimerAcquired(worker=WORKER, scope="b", timeout_s=1.0))
    story.write(a_board(beat_at=NOW))
    story.run(NOW + 1000)
    assert story.signals() == [(0, SIGTERM), (0, SIGKILL)]
    assert len(story.hangs()) == 1


def test_a_stopped_process_gets_sigkill_at_once() -> None:
    story = WatchStory()
    story.evidence[WORKER] = Evidence(is_stopped=True)
    story.kick(a_board(a_slot(limit_s=2.0)))
    story.run(NOW + 1000)
    assert story.signals() == [(0, SIGKILL)]


def test_a_stopped_process_that_was_continued_from_outside_is_let_live_but_told_of() -> None:
    """We only looked at it, so what it wrote since is its own doing."""
    story = WatchStory(is_answering=False)
    story.kick(a_board(a_slot(limit_s=2.0)))
    story.run(NOW + 2)
    story.kick(a_board(a_slot(limit_s=2.0)))
    story.feed(EvidenceTaken(worker=WORKER, evidence=Evidence(is_stopped=True)))
    story.kick(a_board(a_slot(since=NOW + 2, limit_s=2.0)))
    assert story.signals() == []
    (report,) = reports(story)
    assert (report.is_ending, report.hang.scope) == (False, "timer 0")
    assert "went on by itself" in report.aftermath


# What was over on a board just read is reported, whatever follows.


def reports(story: WatchStory) -> list[fx.Report]:
    return [each for each in story.effects if isinstance(each, fx.Report)]


def examined(**fields: Any) -> WatchStory:
    """Return a story in which a worker exceeded a limit of 2 s, and is asked for its stacks."""
    story = WatchStory(is_answering=False)
    story.kick(a_board(a_slot(limit_s=2.0, **fields), stack_signal=63))
    story.run(NOW + 2)
    story.kick(a_board(a_slot(limit_s=2.0, **fields), stack_signal=63))
    (effect,) = takings(story)
    assert not effect.is_by_signal
    return story


def takings(story: WatchStory) -> list[fx.TakeEvidence]:
    return [each for each in story.effects if isinstance(each, fx.TakeEvidence)]


def test_a_worker_that_leaves_its_limit_while_it_is_asked_is_reported() -> None:
    story = examined()
    story.now = NOW + 2.1
    story.feed(EvidenceTaken(worker=WORKER, evidence=Evidence(stacks="File a.py")))
    story.kick(a_board(stack_signal=63))
    (report,) = reports(story)
    assert report.hang.scope == "timer 0"
    assert report.hang.elapsed_s == pytest.approx(2.1)
    assert report.hang.standing.scope == "timer 0", "where it stood when the limit expired"
    assert report.hang.evidence.stacks == "File a.py"
    assert story.signals() == []
    story.run(NOW + 100)
    assert len(reports(story)) == 1


def test_a_stall_after_a_limit_was_over_does_not_make_it_forgotten() -> None:
    story = examined()
    story.sleep(NOW + 4.0)
    story.feed(EvidenceTaken(worker=WORKER, evidence=Evidence()))
    story.kick(a_board(stack_signal=63))
    assert [report.hang.scope for report in reports(story)] == ["timer 0"]


def test_of_two_limits_the_one_that_is_left_is_reported_as_left() -> None:
    story = WatchStory(is_answering=False)
    both = a_slot(0, limit_s=1.0), a_slot(1, limit_s=2.0)
    story.kick(a_board(*both))
    story.run(NOW + 2)
    story.kick(a_board(*both))
    story.feed(EvidenceTaken(worker=WORKER, evidence=Evidence()))
    story.kick(a_board(both[0]))
    assert [(r.hang.scope, r.is_ending) for r in reports(story)] == [
        ("timer 1", False),
        ("timer 0", True),
    ]
    assert story.signals() == [(0, SIGTERM)]


@pytest.mark.parametrize("is_confirming", [False, True])
def test_a_worker_that_ends_while_it_is_examined_is_reported(*, is_confirming: bool) -> None:
    story = examined()
    if is_confirming:
        story.feed(EvidenceTaken(worker=WORKER, evidence=Evidence()))
    story.feed(WorkerGone(worker=WORKER))
    (report,) = reports(story)
    assert not report.is_ending
    assert "ended by itself, or is being stopped" in report.aftermath


def test_a_limit_that_is_longer_than_was_known_is_not_left() -> None:
    """It was learned anew while the worker was asked: it is judged when the longer one is over."""
    story = WatchStory(is_answering=False)
    story.feed(LimitsLearned(limits={"save": 2.0}))
    slot = a_slot(name="save", is_section=True, limit_s=AUTO)
    story.kick(a_board(slot))
    story.run(NOW + 2)
    story.kick(a_board(slot))
    story.feed(LimitsLearned(limits={"save": 50.0}))
    story.feed(EvidenceTaken(worker=WORKER, evidence=Evidence()))
    story.kick(a_board(slot))
    assert reports(story) == []
    assert story.signals() == []


# A signal may end a system call early, so only a worker that is killed anyway gets one.


def condemned() -> WatchStory:
    """Return a story in which a worker that did not answer gets the signal for its stacks."""
    story = examined()
    story.feed(EvidenceTaken(worker=WORKER, evidence=Evidence(notes="no answer")))
    assert len(takings(story)) == 1, "it is not decided yet"
    story.kick(a_board(a_slot(limit_s=2.0), stack_signal=63))
    assert [effect.is_by_signal for effect in takings(story)] == [False, True]
    return story


def test_a_worker_is_killed_whatever_it_does_once_it_got_the_signal_for_its_stacks() -> None:
    story = condemned()
    story.kick(a_board(stack_signal=63))  # its system call was interrupted, and it goes on
    assert story.signals() == []
    story.feed(EvidenceTaken(worker=WORKER, evidence=Evidence(stacks="File c.py")))
    (report,) = reports(story)
    assert (report.is_ending, report.aftermath) == (True, "")
    assert report.hang.evidence.stacks == "File c.py"
    assert story.signals() == [(0, SIGTERM)]


def test_a_worker_that_ends_of_the_signal_for_its_stacks_has_hung() -> None:
    story = condemned()
    story.feed(WorkerGone(worker=WORKER))
    (report,) = reports(story)
    assert (report.is_ending, report.aftermath) == (True, "")


def test_a_condemned_worker_is_killed_if_its_stacks_never_come() -> None:
    story = condemned()
    story.run(NOW + 2 + story.core._policy.evidence_timeout_s + EVIDENCE_LATE_S)
    assert story.signals() == [(0, SIGTERM)]


@pytest.mark.parametrize("signal", [0, -1, SIGUSR1, SIGTERM])
def test_a_worker_that_may_survive_its_limit_gets_no_signal_for_its_stacks(signal: int) -> None:
    story = examined(signal=signal)
    story.feed(EvidenceTaken(worker=WORKER, evidence=Evidence(notes="no answer")))
    story.kick(a_board(a_slot(limit_s=2.0, signal=signal), stack_signal=63))
    assert len(takings(story)) == 1
    assert len(reports(story)) == 1


@pytest.mark.parametrize("held", [Evidence(is_stopped=True), Evidence(is_traced=True)])
def test_a_stopped_or_traced_worker_gets_no_signal_for_its_stacks(held: Evidence) -> None:
    story = examined()
    story.feed(EvidenceTaken(worker=WORKER, evidence=held))
    story.kick(a_board(a_slot(limit_s=2.0), stack_signal=63))
    assert len(takings(story)) == 1


def test_the_question_and_the_signal_share_the_time_for_stacks() -> None:
    story = condemned()
    assert sum(effect.timeout_s for effect in takings(story)) == pytest.approx(0.15)
    assert takings(examined(signal=0))[0].timeout_s == 0.15


# While a worker does not die of SIGKILL.


def unkilled(story: WatchStory) -> list[float]:
    return [each.after_s for each in story.effects if isinstance(each, fx.TellUnkilled)]


def test_it_is_told_every_10_s_that_a_worker_does_not_die() -> None:
    story = hanging(kill_grace_s=5.0)
    story.run(NOW + 16.9)
    assert unkilled(story) == []
    story.run(NOW + 47.0)
    assert unkilled(story) == [10.0, 20.0, 30.0, 40.0]
    story.feed(WorkerGone(worker=WORKER))
    story.run(NOW + 1000)
    assert len(unkilled(story)) == 4
    assert story.signals() == [(0, SIGTERM), (0, SIGKILL)]


def test_it_is_told_of_a_stopped_worker_and_one_whose_timer_kills_at_once() -> None:
    for given, signal in ((Evidence(is_stopped=True), None), (Evidence(), SIGKILL)):
        story = WatchStory()
        story.evidence[WORKER] = given
        story.kick(a_board(a_slot(limit_s=2.0, signal=signal)))
        story.run(NOW + 12.0)
        assert story.signals() == [(0, SIGKILL)]
        assert unkilled(story) == [10.0]


def test_a_stopped_process_gets_the_signal_that_its_timer_names() -> None:
    story = WatchStory()
    story.evidence[WORKER] = Evidence(is_stopped=True)
    story.kick(a_board(a_slot(limit_s=2.0, signal=SIGUSR1)))
    story.run(NOW + 1000)
    assert story.signals() == [(0, SIGUSR1)]


@pytest.mark.parametrize("signal", [None, SIGUSR1, 0])
def test_a_traced_process_is_left_alone_and_its_limit_counts_anew(signal: int | None) -> None:
    story = WatchStory()
    story.evidence[WORKER] = Evidence(is_traced=True)
    story.kick(a_board(a_slot(limit_s=2.0, signal=signal)))
    story.run(NOW + 3.9)
    assert story.told() == ["hang not judged"]
    assert not story.hangs()
    del story.evidence[WORKER]
    story.run(NOW + 4.0)
    assert [hang.noticed_at for hang in story.hangs()] == [NOW + 4.0]


def test_a_worker_at_a_debuggers_prompt_is_left_alone_and_its_limits_count_anew() -> None:
    story = WatchStory(runtime_timeout_s=4.0)
    board = a_board(a_slot(limit_s=2.5), beat_at=NOW, is_debugged=True)
    story.kick(board)
    story.run(NOW + 4.9)
    assert not any(isinstance(each, fx.TakeEvidence) for each in story.effects)
    story.kick(replace(board, is_debugged=False))
    story.run(NOW + 5.0)
    assert [hang.kind for hang in story.hangs()] == [HangKind.TIMER]


def test_a_worker_that_is_gone_is_watched_no_more() -> None:
    story = WatchStory(runtime_timeout_s=3.0, exit_timeout_s=4.0, startup_timeout_s=5.0)
    story.evidence[WORKER] = Evidence(is_alive=False)
    story.kick(a_board(a_slot(limit_s=2.0), a_slot(1, limit_s=9.0), beat_at=NOW))
    story.feed(TimerAcquired(worker=WORKER, scope="a", timeout_s=8.0))
    story.run(NOW + 100)
    (report,) = reports(story)
    assert (report.is_ending, report.aftermath) == (False, "its process has ended by itself")
    assert story.core.next_deadline() is None


def test_a_process_below_a_worker_that_ended_with_its_timer_set_is_not_told_of() -> None:
    """It may have ended long before."""
    story = WatchStory()
    story.evidence[WORKER] = Evidence(is_alive=False)
    story.feed(TimerAcquired(worker=WORKER, scope="a", timeout_s=8.0, pid=4, signal=SIGKILL))
    story.run(NOW + 100)
    assert not reports(story)
    assert not story.signals()


def test_evidence_that_never_comes_is_not_waited_for() -> None:
    story = WatchStory(is_answering=False, evidence_timeout_s=0.5)
    story.kick(a_board())
    story.feed(TimerAcquired(worker=WORKER, scope="a", timeout_s=2.0))
    story.run(NOW + 2)
    story.kick(a_board())
    assert isinstance(story.effects[-1], fx.TakeEvidence)
    story.run(NOW + 7.4)
    story.kick(a_board())
    assert not story.signals()
    story.run(NOW + 7.5)
    story.kick(a_board())
    assert story.signals() == [(0, SIGTERM)]
    assert "none came within 5.5 s" in story.hangs()[0].evidence.notes
    late = EvidenceTaken(worker=WORKER, evidence=Evidence())
    assert story.feed(late) == []


def test_one_reading_of_a_board_is_asked_for_at_a_time() -> None:
    story = WatchStory(is_answering=False)
    story.feed(TimerAcquired(worker=WORKER, scope="a", timeout_s=0.5))
    story.run(NOW + 10)
    assert [type(each) for each in story.effects].count(fx.ReadBoard) == 1
    story.feed(BoardRead(worker=WORKER, snapshot=None))
    assert isinstance(story.effects[-1], fx.TakeEvidence)


def test_a_release_while_the_last_reading_is_awaited_ends_the_case() -> None:
    story = WatchStory(is_answering=False)
    story.kick(None)
    story.feed(TimerAcquired(worker=WORKER, scope="a", timeout_s=0.5))
    story.run(NOW + 0.5)
    story.kick(None)
    story.feed(EvidenceTaken(worker=WORKER, evidence=Evidence()))
    story.feed(TimerReleased(worker=WORKER, scope="a"))
    story.kick(None)
    story.run(NOW + 100)
    assert not story.signals()
    assert ["went on by itself" in report.aftermath for report in reports(story)] == [True]
