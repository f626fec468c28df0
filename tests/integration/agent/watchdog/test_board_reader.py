"""What an agent reads from a board, however a worker left it."""

from __future__ import annotations

import math
import os
import random
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from drumbeat.agent.core.watchdog.model import AUTO, Snapshot, WorkerKey
from drumbeat.agent.model.hang import Purpose
from drumbeat.agent.watchdog.board_reader import LOOKED_AT_NEVER_NS, Board
from tests.support.board_writer import SECOND_NS, BoardWriter
from worker_sdk.board import layout

PID = 4321


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    made = Board(tmp_path, WorkerKey(3, 1), beat_interval_s=0.25)
    yield made
    made.close()
    assert not made.directory.exists()


@pytest.fixture
def worker(board: Board) -> Iterator[BoardWriter]:
    writer = BoardWriter(board.directory)
    yield writer
    writer.close()


def read(board: Board) -> Snapshot:
    snapshot = board.read()
    assert snapshot is not None
    return snapshot


def test_a_new_board_is_private_and_has_no_owner(board: Board, worker: BoardWriter) -> None:
    assert stat.S_IMODE(board.directory.stat().st_mode) == 0o700
    for name in (layout.BOARD_FILE, layout.KICK_FILE, layout.STACKS_FILE):
        assert stat.S_IMODE((board.directory / name).stat().st_mode) == 0o600
    file = (board.directory / layout.BOARD_FILE).stat()
    assert file.st_size == layout.BOARD_BYTES
    assert file.st_blocks * 512 >= layout.BOARD_BYTES, "a full disk would end its worker"
    assert board.read() is None
    assert worker.words[layout.VERSION_WORD] == layout.VERSION
    assert worker.words[layout.LOOK_AT] == LOOKED_AT_NEVER_NS
    assert worker.words[layout.BEAT_INTERVAL] == SECOND_NS // 4


def test_the_header_is_read_in_seconds(board: Board, worker: BoardWriter) -> None:
    worker.claim(
        PID,
        STACK_SIGNAL=60,
        BEAT_AT=2 * SECOND_NS,
        EXITING_AT=3 * SECOND_NS,
        IS_DEBUGGED=1,
        PROGRESS_SINCE=4 * SECOND_NS,
        STEP=41,
        HEARTBEAT_AT=5 * SECOND_NS,
        HEARTBEATS=7,
        STEP_TIME=SECOND_NS // 2,
        GAP_MAX=6 * SECOND_NS,
        GAPS=2,
        STEPS_TOTAL=100,
        LOSS=word_of(2.25),
        SAVED_STEP=40,
        SAVED_AT=8 * SECOND_NS,
    )
    assert read(board) == Snapshot(
        owner_pid=PID,
        stack_signal=60,
        beat_at=2.0,
        exiting_at=3.0,
        is_debugged=True,
        progress_since=4.0,
        step=41,
        heartbeat_at=5.0,
        heartbeats=7,
        step_time_s=0.5,
        gap_max_s=6.0,
        gaps=2,
        steps_total=100,
        loss=2.25,
        saved_step=40,
        saved_at=8.0,
    )


def word_of(loss: float) -> int:
    (word,) = struct.unpack("=q", struct.pack("=d", loss))
    return int(word)


def test_a_loss_that_is_not_finite_was_not_told(board: Board, worker: BoardWriter) -> None:
    for loss, read_as in ((-0.5, -0.5), (math.nan, None), (math.inf, None)):
        worker.claim(PID, LOSS=word_of(loss))
        assert read(board).loss == read_as


def test_a_heartbeat_without_a_step_has_none(board: Board, worker: BoardWriter) -> None:
    worker.claim(PID, HEARTBEATS=1, STEP=layout.NO_STEP)
    assert read(board).step is None
    worker.claim(PID, HEARTBEATS=0, STEP=0)
    assert read(board).step is None


def test_open_slots_are_read_and_others_are_not(board: Board, worker: BoardWriter) -> None:
    worker.claim(PID)
    worker.open_slot(0, "all-reduce", 60.0, signal=10)
    worker.open_slot(1, "closed", 60.0)
    worker.close_slot(1)
    worker.open_slot(2, "épilogue", 1.0, kind=layout.KIND_SECTION)
    worker.words[layout.slot_word(2, layout.SLOT_LIMIT)] = layout.AUTO
    worker.words[layout.slot_word(2, layout.SLOT_DEADLINE)] = layout.OPEN_ENDED
    timer, section = read(board).slots
    assert (timer.slot, timer.name, timer.is_section, timer.signal) == (0, "all-reduce", False, 10)
    assert timer.limit_s == 60.0
    assert timer.deadline == pytest.approx(timer.since + 60.0)
    assert (section.slot, section.name, section.is_section) == (2, "épilogue", True)
    assert (section.deadline, section.limit_s, section.signal) == (None, AUTO, None)


def test_limits_of_in_process_restart_are_told_from_timers_by_what_they_are(
    board: Board, worker: BoardWriter
) -> None:
    """And not by a name that a user may give as well. Only one of them has a grace."""
    worker.claim(PID)
    kinds = (layout.KIND_TIMER, layout.KIND_HARD_TIMEOUT, layout.KIND_HEARTBEAT, 99)
    for slot, kind in enumerate(kinds):
        worker.open_slot(slot, "inprocess hard timeout", 60.0, kind=kind)
        worker.words[layout.slot_word(slot, layout.SLOT_GRACE)] = SECOND_NS
    found = [(slot.purpose, slot.grace_s) for slot in read(board).slots]
    assert found == [(Purpose.USER, None), (Purpose.HARD_TIMEOUT, 1.0), (Purpose.HEARTBEAT, None)]


def test_what_did_not_change_is_the_same_object(board: Board, worker: BoardWriter) -> None:
    worker.claim(PID)
    worker.open_slot(0, "a", 60.0)
    worker.open_slot(1, "b", 60.0)
    before = read(board).slots
    worker.open_slot(1, "b", 60.0)
    after = read(board).slots
    assert after[0] is before[0]
    assert after[1] is not before[1]


def test_half_a_slot_does_not_count(
    board: Board, worker: BoardWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: no mixture of two timers. Method: one is replaced between two readings."""
    worker.claim(PID)
    worker.open_slot(0, "steady", 60.0)
    worker.open_slot(1, "first", 60.0)
    pread = os.pread

    def replace_then_read(fd: int, count: int, offset: int) -> bytes:
        if offset == layout.NAMES_FROM_BYTE:
            worker.open_slot(1, "second", 70.0)
        return pread(fd, count, offset)

    monkeypatch.setattr(os, "pread", replace_then_read)
    assert [slot.name for slot in read(board).slots] == ["steady"]
    monkeypatch.undo()
    assert [slot.name for slot in read(board).slots] == ["steady", "second"]


def test_sections_are_read_with_their_times(board: Board, worker: BoardWriter) -> None:
    worker.claim(PID, SECTIONS_USED=2)
    for index, name in enumerate(("save", "empty")):
        at = layout.name_bytes(layout.SECTION_NAMES_FROM_BYTE, index)
        worker.map[at] = layout.encode_text(name)
    worker.words[layout.section_word(0, layout.SECTION_COUNT)] = 3
    worker.words[layout.section_word(0, layout.SECTION_MAX)] = 2 * SECOND_NS
    assert read(board).sections == {"save": (3, 2.0)}


def test_signals_that_are_none_only_report(board: Board, worker: BoardWriter) -> None:
    worker.claim(PID)
    for slot, number in enumerate((999, -5, 0, 9)):
        worker.open_slot(slot, "s", 1.0, signal=number)
    assert [slot.signal for slot in read(board).slots] == [0, 0, 0, 9]


def test_names_cannot_speak_to_a_terminal(board: Board, worker: BoardWriter) -> None:
    worker.claim(PID)
    worker.open_slot(0, "", 1.0)
    worker.name_slot(0, b"\x1b[2J\xff".ljust(layout.NAME_BYTES, b"\0"))
    assert read(board).slots[0].name == "\\x1b[2J\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("owner", [0, -1, 2**40])
def test_an_impossible_owner_owns_nothing(board: Board, worker: BoardWriter, owner: int) -> None:
    worker.claim(owner)
    assert board.read() is None


@pytest.mark.parametrize("seed", range(20))
def test_a_scribbled_board_is_read_without_harm(
    board: Board, worker: BoardWriter, seed: int
) -> None:
    noise = random.Random(seed)
    worker.map[:] = noise.randbytes(layout.BOARD_BYTES)
    worker.claim(PID, SLOTS_USED=noise.choice([-1, 2**62, 1024]), SECTIONS_USED=2**62)
    snapshot = read(board)
    assert len(snapshot.slots) <= layout.SLOTS_MAX
    assert len(snapshot.sections) <= layout.SECTIONS_MAX
    for slot in snapshot.slots:
        assert slot.deadline is None or slot.deadline > 0
        assert slot.since > 0
        assert slot.signal is None or 0 <= slot.signal <= 64


@pytest.mark.parametrize("size", [0, 100, layout.BOARD_BYTES // 2])
def test_a_board_cut_short_does_no_harm(board: Board, size: int) -> None:
    writer = BoardWriter(board.directory)
    writer.claim(PID, SLOTS_USED=1024)
    writer.close()
    os.truncate(board.directory / layout.BOARD_FILE, size)
    snapshot = board.read()
    assert snapshot is None or snapshot.slots == ()


def test_a_look_is_announced_in_nanoseconds(board: Board, worker: BoardWriter) -> None:
    board.announce(12.5)
    assert worker.words[layout.LOOK_AT] == 12_500_000_000
    board.announce(1e30)
    assert worker.words[layout.LOOK_AT] == LOOKED_AT_NEVER_NS


def test_kicks_are_taken_together(board: Board, worker: BoardWriter) -> None:
    for _ in range(3):
        worker.kick()
    board.drain_kicks()
    with pytest.raises(BlockingIOError):
        os.read(board.kick_fd, 1)
    board.drain_kicks()
