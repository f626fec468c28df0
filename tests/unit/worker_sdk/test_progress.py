"""What heartbeats leave on the board."""

import math
import struct
from datetime import timedelta
from time import monotonic_ns
from typing import Any

import pytest

from tests.support.boards import BoardDirectory
from worker_sdk import heartbeat, section, timers
from worker_sdk.board import layout
from worker_sdk.runtime import clear_scopes


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


def sums(board: BoardDirectory) -> tuple[int, int]:
    return board[layout.STEPS_TIMED], board[layout.STEPS_TIME]


def test_steps_and_their_times_add_up(board: BoardDirectory) -> None:
    heartbeat(step=0)
    assert sums(board) == (0, 0)
    took = gap(board, 1) + gap(board, 4)
    assert sums(board) == (4, took)
    heartbeat(step=2)  # as after a restart in process
    assert sums(board) == (4, took)
    took += gap(board, None)
    assert sums(board) == (5, took)
    with section("checkpoint"):
        pass
    heartbeat()
    assert board[layout.STEPS_TIMED] == 6


def test_work_of_ones_own_adds_up_beside_them(board: BoardDirectory) -> None:
    heartbeat(step=0, busy=9.0)  # of how many steps is not known
    heartbeat(step=2, busy=0.5)
    heartbeat(step=3)
    heartbeat(step=4, busy=timedelta(milliseconds=250))
    heartbeat(step=5, busy=0)
    assert board[layout.STEPS_BUSY] == 4
    assert board[layout.BUSY_TIME] == 750_000_000
    assert board[layout.STEPS_TIMED] == 5


def test_how_many_steps_there_will_be_is_kept_until_it_changes(board: BoardDirectory) -> None:
    heartbeat(step=1)
    assert board[layout.STEPS_TOTAL] == 0
    heartbeat(step=2, total_steps=100)
    heartbeat(step=3)
    assert board[layout.STEPS_TOTAL] == 100
    heartbeat(total_steps=200)
    assert board[layout.STEPS_TOTAL] == 200


def test_the_latest_loss_is_kept_as_a_double(board: BoardDirectory) -> None:
    heartbeat(step=1)
    assert board[layout.LOSS] == 0
    for loss in (2.25, -1, 0.1, math.inf):
        heartbeat(step=2, loss=loss)
        heartbeat(step=3)
        assert struct.unpack("d", struct.pack("q", board[layout.LOSS])) == (float(loss),)
    heartbeat(step=4, loss=0.0)
    assert board[layout.LOSS] == 1, "told, and next to nothing"


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"step": -1}, ValueError, "step is -1; it must be from 0 to"),
        ({"step": 2**63}, ValueError, "it must be from 0 to 9223372036854775807"),
        ({"step": True}, TypeError, "step is True; it must be an int or None"),
        ({"step": 1.0}, TypeError, "step is 1.0"),
        ({"step": "1"}, TypeError, "step is '1'"),
        ({"total_steps": -1}, ValueError, "total_steps is -1; it must be from 0 to"),
        ({"total_steps": 1.5}, TypeError, "total_steps is 1.5; it must be an int or None"),
        ({"loss": "1"}, TypeError, "loss is '1'; it must be a number or None"),
        ({"loss": True}, TypeError, "loss is True"),
        ({"busy": -1.0}, ValueError, "busy is -1.0; it must be finite and above 0, 0 or None"),
        ({"busy": math.nan}, ValueError, "busy is nan"),
        ({"busy": "1"}, TypeError, "busy is '1'; it must be a number of seconds"),
    ],
)
def test_what_is_wrong_is_named_and_leaves_no_heartbeat(
    board: BoardDirectory, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    heartbeat(step=1)
    with pytest.raises(error) as raised:
        heartbeat(**({"step": 2} | arguments))
    assert text in str(raised.value)
    assert board[layout.STEP] == 1
