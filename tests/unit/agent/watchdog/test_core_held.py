"""Workers held until the coordinator has evidence of all ranks, and limits only reported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from drumbeat.agent.watchdog.core import model as fx
from drumbeat.agent.watchdog.core.model import (
    AUTO,
    REPORT,
    HeldReleased,
    JudgeKnown,
    LimitsLearned,
    WorkerGone,
    WorkerKey,
    WorkerStarted,
)
from drumbeat.agent.watchdog.core.worker import EXIT_REPORT_S, START_FACTOR, START_LIMIT_MIN_S
from drumbeat.agent.watchdog.hang import Evidence, HangKind
from tests.support.watching import NOW, OTHER, WORKER, WatchStory, a_board, a_slot

if TYPE_CHECKING:
    from drumbeat.agent.watchdog.core.model import Limit, Snapshot

SIGUSR1, SIGTERM, SIGKILL = 10, 15, 9
HELD_S = 5.0  # of the default policy
TERMINATED = [(0, SIGTERM)]


def hung(*, has_judge: bool = True, evidence: Evidence | None = None, **slot: Any) -> WatchStory:
    """Return a story in which a worker has just exceeded a limit of 2 s, 2 s after ``NOW``."""
    story = WatchStory()
    if evidence is not None:
        story.evidence[WORKER] = evidence
    story.feed(JudgeKnown(is_there=has_judge))
    story.kick(a_board(a_slot(**({"limit_s": 2.0} | slot))))
    story.run(NOW + 2)
    return story


def released(number: int, round_id: int = 0) -> HeldReleased:
    return HeldReleased(round_id=round_id, number=number)


def reports(story: WatchStory) -> list[fx.Report]:
    return [each for each in story.effects if isinstance(each, fx.Report)]


# Held before it is killed.


@pytest.mark.parametrize("was_there", [False, True])
def test_without_a_judge_a_worker_is_killed_at_once(*, was_there: bool) -> None:
    story = WatchStory()
    if was_there:
        story.feed(JudgeKnown(is_there=True), JudgeKnown(is_there=False))
    story.kick(a_board(a_slot(limit_s=2.0)))
    story.run(NOW + 2)
    assert story.signals() == TERMINATED


def test_with_a_judge_a_worker_is_reported_and_held_until_it_is_released() -> None:
    story = hung()
    (report,) = reports(story)
    assert (report.is_ending, report.aftermath) == (True, "")
    story.run(NOW + 4)
    assert story.signals() == []
    (exceeded,) = story.core.exceeded()
    story.feed(released(exceeded.number))
    assert story.signals() == TERMINATED
    assert len(reports(story)) == 1, "it was reported when it was held"


def test_its_grace_counts_from_its_release() -> None:
    story = hung()
    story.run(NOW + 4)
    story.feed(released(1))
    story.run(NOW + 8.9)
    assert story.signals() == TERMINATED
    story.run(NOW + 9)
    assert story.signals() == [*TERMINATED, (0, SIGKILL)]


def test_a_release_that_comes_twice_does_not_signal_twice() -> None:
    story = hung()
    story.feed(released(1), released(1), released(2))
    assert story.signals() == TERMINATED


@pytest.mark.parametrize("release", [released(0), released(1, round_id=1), released(9, -1)])
def test_a_release_for_others_does_not_count(release: HeldReleased) -> None:
    story = hung()
    story.feed(release)
    story.run(NOW + 2 + HELD_S - 0.01)
    assert story.signals() == []


def test_a_release_for_an_earlier_limit_leaves_a_later_one_held() -> None:
    story = WatchStory(WORKER, OTHER)
    story.feed(JudgeKnown(is_there=True))
    story.kick(a_board(a_slot(limit_s=2.0)))
    story.kick(a_board(a_slot(limit_s=3.0)), OTHER)
    story.run(NOW + 3)
    first, second = story.core.exceeded()
    assert first.number < second.number
    story.feed(released(first.number))
    assert story.signals() == TERMINATED
    story.feed(released(second.number))
    assert story.signals() == [*TERMINATED, (1, SIGTERM)]


def test_the_deadline_kills_whatever_the_judge_does() -> None:
    story = hung()
    story.run(NOW + 2 + HELD_S - 0.01)
    assert story.signals() == []
    story.run(NOW + 2 + HELD_S)
    assert story.signals() == TERMINATED
    story.feed(released(1))
    assert story.signals() == TERMINATED, "it comes too late"


def test_a_judge_that_goes_away_does_not_save_a_held_worker() -> None:
    story = hung()
    story.feed(JudgeKnown(is_there=False))
    assert story.signals() == []
    story.run(NOW + 2 + HELD_S)
    assert story.signals() == TERMINATED


def test_a_held_worker_that_writes_on_its_board_is_still_killed() -> None:
    story = hung()
    story.kick(a_board())
    story.run(NOW + 3)
    assert [each.is_held for each in story.core.exceeded()] == [True]
    story.feed(released(1))
    assert story.signals() == TERMINATED


def test_a_worker_that_ends_while_it_is_held_has_hung_and_gets_no_signal() -> None:
    story = hung()
    story.feed(WorkerGone(worker=WORKER))
    story.feed(released(1))
    story.run(NOW + 100)
    assert [(each.is_ending, each.aftermath) for each in reports(story)] == [(True, "")]
    assert story.signals() == []
    assert story.core.exceeded() == ()
    assert story.core.next_deadline() is None


def test_a_stopped_worker_is_held_and_gets_sigkill() -> None:
    story = hung(evidence=Evidence(is_stopped=True))
    assert story.signals() == []
    story.feed(released(1))
    story.run(NOW + 9)
    assert story.signals() == [(0, SIGKILL)]


def test_a_timer_that_names_sigkill_is_held() -> None:
    story = hung(signal=SIGKILL)
    assert story.signals() == []
    story.feed(released(1))
    assert story.signals() == [(0, SIGKILL)]


@pytest.mark.parametrize("signal", [SIGUSR1, SIGTERM])
def test_a_signal_that_a_timer_names_is_sent_at_once(signal: int) -> None:
    story = hung(signal=signal)
    assert story.signals() == [(0, signal)]
    assert not any(each.is_held for each in story.core.exceeded())


@pytest.mark.parametrize("signal", [0, -1])
def test_a_limit_that_is_only_reported_holds_nothing(signal: int) -> None:
    story = hung(signal=signal)
    assert [each.is_ending for each in reports(story)] == [False]
    assert [each.is_held for each in story.core.exceeded()] == [False]
    story.run(NOW + 100)
    story.feed(released(1))
    assert story.signals() == []


def test_what_was_seen_of_a_held_worker_is_kept() -> None:
    worker = hung().core.workers[WORKER]
    assert worker.evidence_held() == Evidence(stacks="File a.py")
    assert hung(signal=0).core.workers[WORKER].evidence_held() is None


# Which limits are exceeded.


def test_a_limit_that_only_reports_is_exceeded_until_it_is_left() -> None:
    story = hung(signal=0, name="save")
    (exceeded,) = story.core.exceeded()
    assert exceeded == fx.Exceeded(
        worker=WORKER, number=1, kind=HangKind.TIMER, scope="save", limit_s=2.0, since=NOW
    )
    story.run(NOW + 50)
    assert story.core.exceeded() == (exceeded,)
    story.kick(a_board())
    assert story.core.exceeded() == ()


def test_a_limit_that_was_left_before_it_was_judged_is_not_exceeded() -> None:
    story = WatchStory(is_answering=False)
    story.kick(a_board(a_slot(limit_s=2.0)))
    story.run(NOW + 2)
    story.kick(a_board(a_slot(limit_s=2.0)))
    story.feed(fx.EvidenceTaken(worker=WORKER, evidence=Evidence()))
    story.kick(a_board())
    assert len(reports(story)) == 1
    assert story.core.exceeded() == ()


def test_a_held_limit_and_one_that_only_reports_are_told_of_one_worker() -> None:
    story = WatchStory()
    story.feed(JudgeKnown(is_there=True))
    story.kick(a_board(a_slot(limit_s=1.0, signal=0), a_slot(1, limit_s=2.0)))
    story.run(NOW + 2)
    told = {each.scope: (each.number, each.is_held) for each in story.core.exceeded()}
    assert told == {"timer 0": (1, False), "timer 1": (2, True)}


# The time between two heartbeats, if it is learned.


def a_beat(at: float, heartbeats: int = 2) -> Snapshot:
    """Return the board of a worker whose latest heartbeat was then."""
    return a_board(progress_since=at, heartbeat_at=at, heartbeats=heartbeats, beat_at=at)


def learned(limit: Limit) -> WatchStory:
    """Return a story in which a worker has just had no heartbeat for as long as was learned."""
    story = WatchStory(progress_timeout_s=limit)
    story.feed(LimitsLearned(limits={"": 20.0}))
    story.kick(a_beat(NOW))
    story.run(NOW + 19.9)
    assert story.hangs() == []
    story.run(NOW + 20)
    return story


def test_the_default_only_reports_a_worker_without_heartbeats() -> None:
    assert fx.WatchdogPolicy().progress_timeout_s == REPORT
    story = learned(REPORT)
    story.run(NOW + 200)
    (report,) = reports(story)
    assert (report.hang.kind, report.is_ending) == (HangKind.PROGRESS, False)
    assert [each.is_held for each in story.core.exceeded()] == [False]
    assert story.signals() == []


def test_the_default_only_reports_an_interpreter_that_does_not_end() -> None:
    """A thread may finish an upload, long after the peers have ended."""
    story = WatchStory()
    story.kick(a_board(exiting_at=NOW))
    story.run(NOW + EXIT_REPORT_S - 0.1)
    assert reports(story) == []
    story.run(NOW + 10 * EXIT_REPORT_S)
    (report,) = reports(story)
    assert (report.hang.kind, report.is_ending) == (HangKind.EXIT, False)
    assert [each.kind for each in story.core.exceeded()] == [HangKind.EXIT]
    assert story.signals() == []


def test_a_worker_that_went_on_and_hung_again_is_reported_again() -> None:
    story = learned(REPORT)
    (first,) = story.core.exceeded()
    story.now = NOW + 30
    story.kick(a_beat(NOW + 30, heartbeats=3))
    assert story.core.exceeded() == ()
    story.run(NOW + 49.9)
    assert len(reports(story)) == 1
    story.run(NOW + 50)
    assert len(reports(story)) == 2
    (second,) = story.core.exceeded()
    assert second.number > first.number
    assert story.signals() == []


def test_auto_kills_a_worker_without_heartbeats() -> None:
    story = learned(AUTO)
    assert [each.is_ending for each in reports(story)] == [True]
    assert story.signals() == TERMINATED


@pytest.mark.parametrize("limit", [REPORT, AUTO])
def test_nothing_is_reported_before_a_limit_was_learned(limit: Limit) -> None:
    story = WatchStory(progress_timeout_s=limit, runtime_timeout_s=None)
    story.kick(a_beat(NOW))
    story.run(NOW + 1000)
    assert story.hangs() == []


# The time to the first heartbeat, in later rounds.


def restarted(start_s: float | None, **policy: Any) -> WatchStory:
    """Return a story whose rank had its first heartbeat after so long, and begins a new round."""
    story = WatchStory(runtime_timeout_s=None, **policy)
    if start_s is not None:
        story.run(NOW + start_s)
        story.kick(a_beat(NOW + start_s))
    story.feed(WorkerGone(worker=WORKER))
    story.now = START_AGAIN
    story.feed(WorkerStarted(worker=AGAIN))
    return story


AGAIN = WorkerKey(1, 0)
START_AGAIN = NOW + 100


def starts(story: WatchStory) -> list[tuple[HangKind, float, bool]]:
    """Return the hangs reported: what kind, how long after the start, and if it is killed."""
    return [
        (each.hang.kind, round(each.hang.noticed_at - START_AGAIN, 3), each.is_ending)
        for each in reports(story)
    ]


@pytest.mark.parametrize(
    ("start_s", "limit_s"), [(1.0, START_LIMIT_MIN_S), (20.0, 20.0 * START_FACTOR)]
)
def test_a_start_that_takes_far_longer_than_before_is_reported(
    start_s: float, limit_s: float
) -> None:
    story = restarted(start_s)
    story.run(START_AGAIN + 500)
    assert starts(story) == [(HangKind.STARTUP, limit_s, False)]
    assert story.signals() == []
    story.kick(a_beat(story.now), AGAIN)
    assert story.core.exceeded() == ()


def test_a_rank_that_never_had_a_heartbeat_has_no_limit() -> None:
    story = restarted(None)
    story.run(START_AGAIN + 1000)
    assert starts(story) == []


def test_another_rank_learns_nothing_of_it() -> None:
    story = restarted(1.0)
    story.kick(a_beat(START_AGAIN), AGAIN)
    story.feed(WorkerStarted(worker=WorkerKey(1, 1)))
    story.run(START_AGAIN + 1000)
    assert starts(story) == []


def test_the_first_round_has_no_limit() -> None:
    story = WatchStory()
    story.run(NOW + 1000)
    assert story.hangs() == []


def test_the_longest_start_of_all_rounds_counts() -> None:
    story = restarted(20.0)
    story.run(START_AGAIN + 1)
    story.kick(a_beat(START_AGAIN + 1), AGAIN)
    story.feed(WorkerGone(worker=AGAIN))
    story.feed(WorkerStarted(worker=WorkerKey(2, 0)))
    story.run(START_AGAIN + 100.9)
    assert starts(story) == []
    story.run(START_AGAIN + 101)
    assert starts(story) == [(HangKind.STARTUP, 101.0, False)]


def test_auto_kills_a_start_that_takes_far_longer_than_before() -> None:
    story = restarted(1.0, progress_timeout_s=AUTO)
    story.run(START_AGAIN + 30)
    assert starts(story) == [(HangKind.STARTUP, 30.0, True)]
    assert story.signals() == TERMINATED


@pytest.mark.parametrize("told_s", [3.0, 400.0])
def test_a_limit_of_the_start_that_was_told_counts_instead_and_kills(told_s: float) -> None:
    story = restarted(1.0, startup_timeout_s=told_s)
    story.run(START_AGAIN + told_s)
    assert starts(story) == [(HangKind.STARTUP, told_s, True)]
    assert story.signals() == TERMINATED


@pytest.mark.parametrize("limit", [None, 60.0])
def test_a_start_is_not_learned_if_the_time_between_heartbeats_is_not(limit: Limit) -> None:
    story = restarted(1.0, progress_timeout_s=limit)
    story.run(START_AGAIN + 500)
    assert starts(story) == []
