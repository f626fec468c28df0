"""Sections: their own limit, and what they do to those around them."""

import threading
from time import monotonic_ns
from typing import Literal

import pytest

from tests.support.boards import BoardDirectory
from worker_sdk import acquire, expires, heartbeat, release, section
from worker_sdk.board import layout
from worker_sdk.runtime import clear_scopes

SECOND = 1_000_000_000


def pass_time() -> None:
    """Let the clock move on, as little as it can."""
    now = monotonic_ns()
    while monotonic_ns() == now:
        pass


@pytest.mark.parametrize(("timeout", "limit"), [(5, 5 * SECOND), (None, 0), ("auto", layout.AUTO)])
def test_a_section_has_its_own_limit(
    board: BoardDirectory, timeout: float | Literal["auto"] | None, limit: int
) -> None:
    with section("checkpoint", timeout):
        (seen,) = board.slots()
    assert (seen.name, seen.kind, seen.limit) == ("checkpoint", layout.KIND_SECTION, limit)
    assert seen.deadline == (seen.since + limit if limit > 0 else layout.OPEN_ENDED)
    assert board.is_idle()


def test_what_is_around_a_section_has_the_time_afterwards_that_it_had_before(
    board: BoardDirectory,
) -> None:
    acquire("timer", 60)
    with expires(30, "block"):
        before = board.slots()
        entered = monotonic_ns()
        with section("checkpoint", 5):
            assert board.names() == ["checkpoint"]
            pass_time()
        after = board.slots()
        left = monotonic_ns()
    release("timer")
    assert [seen.name for seen in after] == ["timer", "block"]
    for one, other in zip(before, after, strict=True):
        pause = other.deadline - one.deadline
        assert 0 < pause <= left - entered
        assert other.since - one.since == pause
        assert other.limit == one.limit


def test_what_is_opened_within_a_section_counts(board: BoardDirectory) -> None:
    with section("checkpoint"):
        with expires(60, "write"):
            assert board.names() == ["checkpoint", "write"]
        acquire("upload", 60)
    assert board.names() == ["upload"]
    release("upload")


def test_what_is_released_within_a_section_stays_so(board: BoardDirectory) -> None:
    acquire("a", 60)
    acquire("b", 60)
    with section("checkpoint"):
        release("a")
        release("b")
        acquire("b", 30)
    assert [(seen.name, seen.limit) for seen in board.slots()] == [("b", 30 * SECOND)]
    release("b")


def test_of_nested_sections_the_innermost_counts(board: BoardDirectory) -> None:
    with expires(60, "timer"):
        with section("outer", 50):
            (outer,) = board.slots()
            with section("inner", "auto"):
                assert board.names() == ["inner"]
                with section("innermost"):
                    assert board.names() == ["innermost"]
                assert board.names() == ["inner"]
            (again,) = board.slots()
            assert again.name == "outer"
            assert again.deadline - outer.deadline == again.since - outer.since > 0
        assert board.names() == ["timer"]
    assert board.is_idle()


def test_sections_leave_other_threads_alone(board: BoardDirectory) -> None:
    acquire("main", 60)
    seen = []

    def other() -> None:
        with section("other"):
            seen.extend(board.names())

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == ["main", "other"]
    release("main")


def test_times_of_whole_sections_are_kept_without_those_within(board: BoardDirectory) -> None:
    began = monotonic_ns()
    for _ in range(3):
        with section("outer"), section("inner"):
            pass_time()
    with pytest.raises(KeyError), section("broken"):
        raise KeyError
    took = monotonic_ns() - began
    found = board.sections()
    assert {name: count for name, (count, _) in found.items()} == {"inner": 3, "outer": 3}
    assert 0 < found["outer"][1] + found["inner"][1] <= took


def test_only_so_many_sections_are_told_apart(board: BoardDirectory) -> None:
    for number in range(layout.SECTIONS_MAX + 1):
        with section(str(number)):
            pass
    assert list(board.sections()) == [str(number) for number in range(layout.SECTIONS_MAX)]


def test_a_section_suspends_the_limit_on_progress(board: BoardDirectory) -> None:
    with section("before the first heartbeat"):
        pass
    assert board[layout.PROGRESS_SINCE] == 0
    heartbeat()
    assert board[layout.PROGRESS_SINCE] == board[layout.HEARTBEAT_AT]
    with section("outer"):
        assert board[layout.PROGRESS_SINCE] == 0
        with section("inner"):
            pass
        assert board[layout.PROGRESS_SINCE] == 0
        left = monotonic_ns()
    assert left < board[layout.PROGRESS_SINCE] <= monotonic_ns()


def test_a_first_heartbeat_within_a_section_counts_from_its_end(board: BoardDirectory) -> None:
    with section("evaluate"):
        heartbeat()
        assert board[layout.PROGRESS_SINCE] == 0
        left = monotonic_ns()
    assert board[layout.PROGRESS_SINCE] >= left


def test_a_section_of_another_thread_leaves_progress_alone(board: BoardDirectory) -> None:
    heartbeat()
    since = board[layout.PROGRESS_SINCE]
    seen = []

    def other() -> None:
        with section("upload"):
            seen.append(board[layout.PROGRESS_SINCE])

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert [*seen, board[layout.PROGRESS_SINCE]] == [since, since]


def test_clearing_closes_all_and_who_is_inside_leaves_without_effect(
    board: BoardDirectory,
) -> None:
    heartbeat()
    acquire("a", 60)
    with expires(60, "b"), section("c"):
        clear_scopes()
        assert board.is_idle()
        assert board[layout.PROGRESS_SINCE] == 0
        assert board[layout.OWNER_PID] != 0
        acquire("a", 60)
    assert board.names() == ["a"]
    assert board[layout.PROGRESS_SINCE] == 0
    assert acquire("d", 60)
    assert sorted(board.names()) == ["a", "d"]
    release("a")
    release("d")
    assert board.is_idle()
