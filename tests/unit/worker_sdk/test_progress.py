"""What heartbeats leave on the board."""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import pytest

from worker_sdk import heartbeat, section, timers
from worker_sdk.board import layout
from worker_sdk.runtime import clear_scopes

if TYPE_CHECKING:
    from tests.support.boards import BoardDirectory


class Index:
    """An integer of another library's."""

    def __index__(self) -> int:
        return 7


def gap(board: BoardDirectory, step: int | None = None) -> int:
    """Beat, and return the time since the beat before."""
    before = board[layout.HEARTBEAT_AT]
    heartbeat(step)
    return board[layout.HEARTBEAT_AT] - before


def test_a_heartbeat_tells_when_and_where(board: BoardDirectory) -> None:
    before = monotonic_ns()
    heartbeat(step=3)
    assert before <= board[layout.HEARTBEAT_AT] <= monotonic_ns()
    assert board[layout.PROGRESS_SINCE] == board[layout.HEARTBEAT_AT]
    assert (board[layout.STEP], board[layout.HEARTBEATS]) == (3, 1)
    heartbeat()
    assert (board[layout.STEP], board[layout.HEARTBEATS]) == (layout.NO_STEP, 2)
    heartbeat(Index())  # type: ignore[arg-type]
    assert board[layout.STEP] == 7
    assert board.is_idle()


@pytest.mark.parametrize(
    ("step", "error", "text"),
    [
        (-1, ValueError, "step is -1; it must be from 0 to"),
        (2**63, ValueError, "it must be from 0 to 9223372036854775807"),
        (True, TypeError, "step is True; it must be an int or None"),
        (1.0, TypeError, "step is 1.0"),
        ("1", TypeError, "step is '1'"),
    ],
)
def test_a_wrong_step_is_named(step: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as raised:
        heartbeat(step)
    assert text in str(raised.value)


def test_the_longest_gap_and_how_many(board: BoardDirectory) -> None:
    heartbeat()
    assert (board[layout.GAPS], board[layout.GAP_MAX]) == (0, 0)
    gaps = [gap(board) for _ in range(5)]
    assert (board[layout.GAPS], board[layout.GAP_MAX]) == (5, max(gaps))


def test_a_gap_with_a_section_in_it_is_no_gap(board: BoardDirectory) -> None:
    heartbeat()
    with section("a"):
        pass
    heartbeat()
    with section("b"):
        heartbeat()
        heartbeat()
    heartbeat()
    assert board[layout.GAPS] == 0
    heartbeat()
    assert board[layout.GAPS] == 1


def test_the_time_of_a_step(board: BoardDirectory) -> None:
    heartbeat()
    assert board[layout.STEP_TIME] == 0
    assert gap(board) == board[layout.STEP_TIME]
    heartbeat(10)
    assert gap(board, 11) == board[layout.STEP_TIME]
    assert gap(board, 15) // 4 == board[layout.STEP_TIME]
    known = board[layout.STEP_TIME]
    heartbeat(3)  # counted anew: how many steps that were is not known
    assert board[layout.STEP_TIME] == known


def test_the_time_of_a_step_leaves_sections_out(board: BoardDirectory) -> None:
    heartbeat(1)
    began = monotonic_ns()
    with section("checkpoint"):
        heartbeat(1)
        entered = monotonic_ns()
        while monotonic_ns() == entered:
            pass
        left = monotonic_ns()
    whole = gap(board, 2)
    assert board[layout.STEP_TIME] <= whole - (left - entered)
    assert 0 < board[layout.STEP_TIME] < monotonic_ns() - began


def test_after_clearing_the_first_heartbeat_ends_no_gap(board: BoardDirectory) -> None:
    heartbeat(1)
    clear_scopes()
    heartbeat(2)
    assert (board[layout.GAPS], board[layout.STEP_TIME], board[layout.HEARTBEATS]) == (0, 0, 2)


def test_the_largest_step(board: BoardDirectory) -> None:
    heartbeat(0)
    heartbeat(timers.STEP_MAX)
    assert board[layout.STEP] == timers.STEP_MAX
