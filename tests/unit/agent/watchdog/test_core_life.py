"""Startup, signs of life, progress and the end: limits of which a worker has one each."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from drumbeat.agent.watchdog.core.model import AUTO, HeartbeatReceived, LimitsLearned, WorkerStarted
from drumbeat.agent.watchdog.hang import HangKind
from tests.support.watching import NOW, OTHER, WORKER, WatchStory, a_board, a_slot

HEARTBEAT = HeartbeatReceived(worker=WORKER)


def over(story: WatchStory) -> list[tuple[HangKind, float]]:
    return [(hang.kind, hang.noticed_at - NOW) for hang in story.hangs()]


def test_a_worker_that_says_nothing_is_left_alone() -> None:
    story = WatchStory(progress_timeout_s=1.0)
    story.run(NOW + 10_000)
    assert not story.hangs()


def test_startup_is_from_the_start_to_the_first_heartbeat() -> None:
    story = WatchStory(startup_timeout_s=20.0)
    story.kick(a_board())
    story.run(NOW + 19.9)
    assert not story.hangs()
    story.run(NOW + 20.0)
    assert over(story) == [(HangKind.STARTUP, 20.0)]


@pytest.mark.parametrize("is_call", [True, False])
def test_a_heartbeat_ends_startup(*, is_call: bool) -> None:
    story = WatchStory(startup_timeout_s=20.0)
    story.run(NOW + 19)
    if is_call:
        story.feed(HEARTBEAT)
    else:
        story.write(a_board(heartbeats=1, heartbeat_at=NOW + 19))
    story.run(NOW + 1000)
    assert not story.hangs()


def test_a_runtime_that_beat_and_does_not_any_more_hangs() -> None:
    story = WatchStory(runtime_timeout_s=5.0)
    story.kick(a_board(beat_at=NOW))
    for second in range(1, 11):
        story.run(NOW + second)
        story.beat_at(NOW + second)
    story.run(NOW + 14.9)
    assert not story.hangs()
    story.run(NOW + 15.0)
    assert over(story) == [(HangKind.RUNTIME, 15.0)]
    assert story.hangs()[0].elapsed_s == 5.0


def test_a_call_is_no_sign_of_life_of_the_runtime() -> None:
    story = WatchStory(runtime_timeout_s=5.0)
    story.kick(a_board(beat_at=NOW))
    story.run(NOW + 4)
    story.feed(HEARTBEAT)
    story.run(NOW + 5)
    assert over(story) == [(HangKind.RUNTIME, 5.0)]


def test_progress_is_expected_from_the_first_heartbeat_on() -> None:
    story = WatchStory(progress_timeout_s=8.0)
    story.kick(a_board())
    story.run(NOW + 100)
    assert not story.hangs()
    story.kick(a_board(heartbeats=1, progress_since=NOW + 100, heartbeat_at=NOW + 100, step=3))
    story.run(NOW + 107.9)
    assert not story.hangs()
    story.run(NOW + 108.0)
    assert over(story) == [(HangKind.PROGRESS, 108.0)]
    assert story.hangs()[0].standing.step == 3


def test_progress_by_calls_counts_as_well() -> None:
    story = WatchStory(progress_timeout_s=8.0)
    story.feed(HEARTBEAT)
    story.run(NOW + 7)
    story.feed(HEARTBEAT)
    story.run(NOW + 14.9)
    assert not story.hangs()
    story.run(NOW + 15.0)
    assert over(story) == [(HangKind.PROGRESS, 15.0)]


def test_the_latest_progress_counts_whichever_way_it_came() -> None:
    story = WatchStory(progress_timeout_s=8.0)
    story.feed(HEARTBEAT)
    story.run(NOW + 7)
    story.write(a_board(heartbeats=1, progress_since=NOW + 7, heartbeat_at=NOW + 7))
    story.run(NOW + 14)
    story.feed(HEARTBEAT)
    story.run(NOW + 21.9)
    assert not story.hangs()
    story.run(NOW + 22.0)
    assert over(story) == [(HangKind.PROGRESS, 22.0)]


def test_in_a_section_no_progress_is_expected() -> None:
    story = WatchStory(progress_timeout_s=8.0)
    story.feed(HEARTBEAT)
    story.kick(a_board(heartbeats=1, progress_since=None, heartbeat_at=NOW))
    story.run(NOW + 1000)
    assert not story.hangs()


def test_automatic_progress_has_the_learned_limit() -> None:
    story = WatchStory(progress_timeout_s=AUTO)
    story.kick(a_board(heartbeats=1, progress_since=NOW))
    story.run(NOW + 100)
    assert not story.hangs()
    story.feed(LimitsLearned(limits={"": 120.0}))
    story.run(NOW + 119.9)
    assert not story.hangs()
    story.run(NOW + 120.0)
    assert over(story) == [(HangKind.PROGRESS, 120.0)]
    assert story.hangs()[0].limit_s == 120.0


def test_limits_learned_before_a_start_hold_for_it() -> None:
    story = WatchStory(OTHER, progress_timeout_s=AUTO)
    story.feed(LimitsLearned(limits={"": 12.0}), WorkerStarted(worker=WORKER), HEARTBEAT)
    story.run(NOW + 12.0)
    assert over(story) == [(HangKind.PROGRESS, 12.0)]


def test_an_interpreter_that_does_not_end_hangs() -> None:
    story = WatchStory(exit_timeout_s=30.0)
    story.kick(a_board(exiting_at=NOW))
    story.run(NOW + 29.9)
    assert not story.hangs()
    story.run(NOW + 30.0)
    assert over(story) == [(HangKind.EXIT, 30.0)]


def test_at_its_end_neither_life_nor_progress_nor_a_start_is_expected() -> None:
    story = WatchStory(
        exit_timeout_s=30.0, runtime_timeout_s=5.0, progress_timeout_s=5.0, startup_timeout_s=5.0
    )
    board = a_board(beat_at=NOW)
    story.kick(board)
    story.feed(HEARTBEAT)
    story.kick(replace(board, exiting_at=NOW))
    story.run(NOW + 29.9)
    assert not story.hangs()


def test_timers_go_on_at_the_end() -> None:
    story = WatchStory(exit_timeout_s=30.0)
    story.kick(a_board(a_slot(limit_s=10.0), exiting_at=NOW))
    story.run(NOW + 10)
    assert over(story) == [(HangKind.TIMER, 10.0)]


@pytest.mark.parametrize("name", ["runtime_timeout_s", "exit_timeout_s"])
def test_a_limit_may_be_none(name: str) -> None:
    policy: dict[str, Any] = {name: None}
    story = WatchStory(**policy)
    field = "beat_at" if name == "runtime_timeout_s" else "exiting_at"
    story.kick(a_board(**{field: NOW}))
    story.run(NOW + 10_000)
    assert not story.hangs()
