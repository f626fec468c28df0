"""What is done about a worker that hangs: evidence, signals, debuggers."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.watchdog.core import model as fx
from agent.watchdog.core.model import (
    BoardRead,
    EvidenceTaken,
    TimerAcquired,
    TimerReleased,
    WorkerGone,
)
from agent.watchdog.hang import Evidence, HangKind
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


def test_what_a_stopped_process_wrote_while_it_gave_its_stacks_does_not_acquit_it() -> None:
    """To write them it had to run for a moment, and its other threads ran as well."""
    story = WatchStory()
    story.kick(a_board(a_slot(limit_s=2.0)))
    story.is_answering = False
    story.run(NOW + 2)
    story.kick(a_board(a_slot(limit_s=2.0)))
    story.kick(a_board(a_slot(since=NOW + 2, limit_s=2.0)))  # it runs, for its stacks
    story.feed(EvidenceTaken(worker=WORKER, evidence=Evidence(is_stopped=True)))
    assert story.signals() == [(0, SIGKILL)]


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
    assert not story.hangs()
    assert story.core.next_deadline() is None


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
    assert not story.hangs()
