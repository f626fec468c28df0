"""When the watchdog looks, what it announces, and what it makes of its own lateness."""

from __future__ import annotations

from typing import Any

import pytest

from drumbeat.agent.watchdog.core import model as fx
from drumbeat.agent.watchdog.core.model import (
    AUTO,
    DeadlineReached,
    HeartbeatReceived,
    TimerAcquired,
    WorkerGone,
    WorkerStarted,
)
from drumbeat.agent.watchdog.core.worker import merged
from drumbeat.agent.watchdog.hang import Standing
from tests.support.watching import NOW, OTHER, WORKER, WatchStory, a_board, a_slot

SIGTERM, SIGKILL = 15, 9


def looks(effects: list[fx.Effect]) -> list[float]:
    """Return what was announced, in seconds after ``NOW``; -1 stands for a reading."""
    found = []
    for each in effects:
        if isinstance(each, fx.AnnounceLook):
            found.append(round(each.look_at - NOW, 3))
        elif isinstance(each, fx.ReadBoard):
            found.append(-1)
    return found


def test_no_worker_is_watched_at_first() -> None:
    story = WatchStory()
    story.feed(WorkerGone(worker=WORKER))
    assert story.core.next_deadline() is None
    assert story.feed(DeadlineReached()) == []


def test_a_start_announces_a_look_and_then_reads() -> None:
    story = WatchStory(pulse_s=0.5)
    assert looks(story.effects) == [0.5, -1]
    assert story.core.next_deadline() == NOW + 0.5


def test_each_pulse_announces_the_next_before_it_reads_and_the_first_limit_after() -> None:
    story = WatchStory(pulse_s=1.0)
    story.kick(a_board(a_slot(limit_s=2.5)))
    assert looks(story.run(NOW + 2.2)) == [2.0, -1, 3.0, -1, 2.5]
    assert story.core.next_deadline() == NOW + 2.5


def test_all_workers_share_a_pulse() -> None:
    story = WatchStory(WORKER, pulse_s=1.0)
    story.now = NOW + 0.25
    story.feed(WorkerStarted(worker=OTHER))
    effects = story.run(NOW + 1.0)
    assert {each.worker for each in effects if isinstance(each, fx.ReadBoard)} == {WORKER, OTHER}


def test_an_earlier_limit_is_announced_at_once() -> None:
    story = WatchStory(pulse_s=1.0)
    assert looks(story.kick(a_board(a_slot(limit_s=0.5)))) == [0.5]
    later = TimerAcquired(worker=WORKER, scope="a", timeout_s=0.75)
    earlier = TimerAcquired(worker=WORKER, scope="b", timeout_s=0.25)
    assert looks(story.feed(later)) == []
    assert looks(story.feed(earlier)) == [0.25]


def test_what_was_announced_is_kept_when_its_reason_is_gone() -> None:
    """A worker that relied on it did not kick."""
    story = WatchStory(pulse_s=1.0)
    story.kick(a_board(a_slot(limit_s=0.5)))
    assert looks(story.kick(a_board())) == []
    story.write(a_board(a_slot(limit_s=0.6)))
    assert looks(story.run(NOW + 0.55)) == [1.0, -1, 0.6]
    story.run(NOW + 0.6)
    assert story.signals() == [(0, SIGTERM)]


def test_a_board_that_says_the_same_again_changes_nothing() -> None:
    story = WatchStory()
    board = a_board(a_slot(), beat_at=NOW)
    story.kick(board)
    assert story.kick(board) == []


@pytest.mark.parametrize("is_call", [True, False])
def test_what_ran_is_extended_by_a_stall(*, is_call: bool) -> None:
    story = WatchStory(pulse_s=1.0)
    if is_call:
        story.feed(TimerAcquired(worker=WORKER, scope="a", timeout_s=5.5))
    else:
        story.kick(a_board(a_slot(limit_s=5.5)))
    story.run(NOW + 1.0)
    story.sleep(NOW + 12.0)  # it was due at 2, and awake at 1
    story.run(NOW + 16.4)
    assert not story.signals()
    story.run(NOW + 16.5)
    assert story.signals() == [(0, SIGTERM)]


def test_only_the_first_stall_of_a_limit_is_given_more_than_is_certain() -> None:
    """Else one that is late at every pulse would never notice anything."""
    story = WatchStory(pulse_s=1.0)
    story.kick(a_board(a_slot(limit_s=5.5)))
    story.sleep(NOW + 1.25)  # awake at 0, due at 1: 1.25 more
    story.sleep(NOW + 2.25)  # awake at 1.25, due at 2: 0.25 more
    story.run(NOW + 6.9)
    assert not story.signals()
    story.run(NOW + 7.0)
    assert story.signals() == [(0, SIGTERM)]


def test_a_little_lateness_is_no_stall() -> None:
    story = WatchStory(pulse_s=1.0, stall_s=0.125)
    story.kick(a_board(a_slot(limit_s=5.0)))
    story.sleep(NOW + 1.125)
    story.run(NOW + 5.0)
    assert story.signals() == [(0, SIGTERM)]


def test_a_stall_is_noticed_by_whatever_comes_first() -> None:
    story = WatchStory(pulse_s=1.0)
    story.kick(a_board(a_slot(limit_s=5.0)))
    story.now = NOW + 100
    story.feed(HeartbeatReceived(worker=WORKER))
    story.feed(DeadlineReached())
    assert story.told() == ["watchdog stalled"], "once per stall"
    story.run(NOW + 104.9)
    assert not story.signals()
    story.run(NOW + 105.0)
    assert story.signals() == [(0, SIGTERM)]


def test_timers_acquired_after_a_stall_are_not_extended() -> None:
    story = WatchStory(pulse_s=1.0)
    story.write(a_board(a_slot(since=NOW + 100, limit_s=5.0, signal=0)))
    story.now = NOW + 100
    story.feed(TimerAcquired(worker=WORKER, scope="a", timeout_s=6.0))
    story.run(NOW + 105)
    assert [hang.scope for hang in story.hangs()] == ["timer 0"]
    story.run(NOW + 106)
    assert story.signals() == [(0, SIGTERM)]


def test_a_timer_that_was_written_before_the_stall_but_not_read_is_extended() -> None:
    story = WatchStory(pulse_s=1.0)
    story.write(a_board(a_slot(since=NOW, limit_s=5.0)))
    story.sleep(NOW + 100)
    story.run(NOW + 104.9)
    assert not story.signals()
    story.run(NOW + 105)
    assert story.signals() == [(0, SIGTERM)]


def test_one_that_had_its_share_of_a_stall_gets_only_what_is_certain_of_the_next() -> None:
    story = WatchStory(pulse_s=1.0)
    story.write(a_board(a_slot(since=NOW, limit_s=5.5)))
    story.sleep(NOW + 1.25)  # awake at 0: 1.25 more
    story.sleep(NOW + 2.25)  # due at 2: 0.25 more
    story.run(NOW + 6.9)
    assert not story.signals()
    story.run(NOW + 7.0)
    assert story.signals() == [(0, SIGTERM)]


def test_a_timer_written_during_the_stall_is_given_its_part_of_it() -> None:
    story = WatchStory(pulse_s=1.0)
    story.write(a_board(a_slot(since=NOW + 40, limit_s=5.0)))
    story.sleep(NOW + 100)
    story.run(NOW + 104.9)
    assert not story.signals()
    story.run(NOW + 105)
    assert story.signals() == [(0, SIGTERM)]


def test_one_of_a_life_limits_and_the_grace_are_extended_as_well() -> None:
    story = WatchStory(
        pulse_s=1.0, startup_timeout_s=50.0, runtime_timeout_s=20.0, kill_grace_s=5.0
    )
    story.kick(a_board(beat_at=NOW))
    story.sleep(NOW + 100)
    story.run(NOW + 119.9)
    assert not story.signals()
    story.run(NOW + 120)
    assert story.signals() == [(0, SIGTERM)]
    story.sleep(NOW + 200)
    story.run(NOW + 204.9)
    assert story.signals() == [(0, SIGTERM)]
    story.run(NOW + 205)
    assert story.signals() == [(0, SIGTERM), (0, SIGKILL)]


def test_a_runtime_that_beat_during_the_stall_counts_from_there() -> None:
    story = WatchStory(pulse_s=1.0, runtime_timeout_s=20.0)
    story.kick(a_board(beat_at=NOW))
    story.beat_at(NOW + 100)
    story.sleep(NOW + 100)
    story.run(NOW + 119.9)
    assert not story.signals()
    story.run(NOW + 120)
    assert story.signals() == [(0, SIGTERM)]


# What those who report are told.


def test_a_standing_is_the_innermost_section_else_the_latest_timer() -> None:
    story = WatchStory()
    outer = a_slot(0, name="outer", is_section=True, since=NOW, limit_s=AUTO)
    inner = a_slot(1, name="inner", is_section=True, since=NOW + 1, limit_s=None)
    timer = a_slot(2, name="timer", since=NOW + 2, limit_s=60.0)
    story.now = NOW + 2
    story.kick(a_board(outer, inner, timer, step=4, step_time_s=0.5, beat_at=NOW, heartbeat_at=NOW))
    assert story.core.workers[WORKER].standing() == Standing(
        local_rank=0,
        step=4,
        step_time_s=0.5,
        heartbeat_at=NOW,
        beat_at=NOW,
        scope="inner",
        scope_since=NOW + 1,
        scopes_open=3,
    )
    story.kick(a_board(timer))
    story.now = NOW + 3
    story.feed(TimerAcquired(worker=WORKER, scope="ü" * 100, timeout_s=60.0))
    standing = story.core.workers[WORKER].standing()
    assert (standing.scope, standing.scope_since) == ("ü" * 64, NOW + 3), "at most 128 bytes"


@pytest.mark.parametrize("tells_step_sums", [False, True])
def test_timed_steps_are_told_where_stragglers_are_looked_for(*, tells_step_sums: bool) -> None:
    story = WatchStory(tells_step_sums=tells_step_sums)
    story.kick(a_board(step=4, steps_timed=3, steps_s=1.5))
    assert story.core.workers[WORKER].standing().steps_timed == 3 * tells_step_sums


def test_the_latest_heartbeat_says_the_step() -> None:
    story = WatchStory()
    story.kick(a_board(step=4, heartbeats=1, heartbeat_at=NOW))
    story.now = NOW + 1
    story.feed(HeartbeatReceived(worker=WORKER, step=5))
    standing = story.core.workers[WORKER].standing()
    assert (standing.step, standing.heartbeat_at) == (5, NOW + 1)
    story.kick(a_board(step=6, heartbeats=2, heartbeat_at=NOW + 2))
    standing = story.core.workers[WORKER].standing()
    assert (standing.step, standing.heartbeat_at) == (6, NOW + 2)


def test_a_heartbeat_is_expected_since_the_latest_or_the_end_of_a_section_after_it() -> None:
    story = WatchStory()

    def expected(**board: Any) -> float | None:
        story.kick(a_board(**board))
        return story.core.workers[WORKER].standing().progress_since

    assert expected(progress_since=NOW) is None, "there was none yet"
    assert expected(heartbeats=1, heartbeat_at=NOW, progress_since=NOW) == NOW
    assert expected(heartbeats=1, heartbeat_at=NOW, progress_since=None) is None, "in a section"
    assert expected(heartbeats=1, heartbeat_at=NOW, progress_since=NOW + 5) == NOW + 5
    assert expected(heartbeats=1, progress_since=NOW, exiting_at=NOW + 6) is None
    story.now = NOW + 7
    story.feed(HeartbeatReceived(worker=WORKER, step=5))
    assert expected(heartbeats=1, progress_since=NOW) == NOW + 7


def test_observations_are_merged_over_workers() -> None:
    story = WatchStory(WORKER, OTHER)
    story.kick(a_board(gaps=3, gap_max_s=2.0, sections={"save": (1, 9.0)}))
    story.kick(a_board(gaps=2, gap_max_s=4.0, sections={"save": (2, 7.0), "load": (1, 1.0)}), OTHER)
    observed = merged([story.core.workers[WORKER].observed(), story.core.workers[OTHER].observed()])
    assert observed == {"": (5, 4.0), "load": (1, 1.0), "save": (3, 9.0)}


def test_gaps_between_calls_are_observed() -> None:
    story = WatchStory()
    for after_s in (0.0, 2.0, 5.0):
        story.now = NOW + after_s
        story.feed(HeartbeatReceived(worker=WORKER))
    assert story.core.workers[WORKER].observed() == {"": (2, 3.0)}


def test_observations_are_bounded() -> None:
    story = WatchStory()
    story.kick(a_board(gaps=1, sections={f"s{n}": (1, 1.0) for n in range(80)}))
    observed = merged([story.core.workers[WORKER].observed()])
    assert len(observed) == 65
    assert "" in observed
