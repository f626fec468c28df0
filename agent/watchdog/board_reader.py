"""Shell. Makes, reads and removes the boards that workers share with this agent.

They are read and written by calls rather than mapped: a worker may cut its file short, and
a page that is gone would end the agent.
"""

from __future__ import annotations

import math
import os
import shutil
import struct
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from drumbeat.agent.core.watchdog.model import AUTO, Slot, Snapshot, Tally, WorkerKey
from drumbeat.agent.model.hang import Purpose
from drumbeat.agent.watchdog.notice_page import NoticePage
from drumbeat.text.format import one_line
from worker_sdk.board import layout
from worker_sdk.errors import RANK_MAX
from worker_sdk.interpreter.signal_numbers import is_signal

SUSPECTS_BYTES_MAX = 65_536  # what the pipe holds; more is read at the next look
_Suspect = tuple[Annotated[int, msgspec.Meta(ge=0, le=RANK_MAX)] | None, str]
PID_MAX = 2**22  # the highest process id of Linux
LOOKED_AT_NEVER_NS = 2**63 - 1  # until the first look is announced every deadline needs a kick
_SECOND_NS = 1_000_000_000
_PURPOSES = {
    layout.KIND_TIMER: Purpose.USER,
    layout.KIND_SECTION: Purpose.USER,
    layout.KIND_HARD_TIMEOUT: Purpose.HARD_TIMEOUT,
    layout.KIND_HEARTBEAT: Purpose.HEARTBEAT,
}
_WORD = struct.Struct("=q")
_DOUBLE, _WORD = struct.Struct("=d"), struct.Struct("=q")
_HEADER = struct.Struct(f"={layout.HEADER_WORDS}q")
_SLOT = struct.Struct(f"={layout.SLOT_WORDS}q")
_SECTION = struct.Struct(f"={layout.SECTION_WORDS}q")


class Board:
    """One worker's directory: its board, three FIFOs and its notice page.

    Raises ``OSError`` if it can't be made.

    ``kick_fd`` and ``stacks_fd`` are read without blocking; this side keeps them open for
    writing as well, so that they never come to an end.
    """

    def __init__(self, parent: Path, key: WorkerKey, *, beat_interval_s: float) -> None:
        prefix = f"{key.round_id}-{key.local_rank}-"
        self.directory = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        self._fds: list[int] = []
        self._known: dict[int, tuple[bytes, bytes, Slot | None]] = {}
        try:
            self._fd = self._open(layout.BOARD_FILE, os.O_CREAT | os.O_EXCL)
            # All of it now: a disk that fills up later would end the worker that writes.
            os.posix_fallocate(self._fd, 0, layout.BOARD_BYTES)
            self._write(layout.VERSION_WORD, layout.VERSION)
            self._write(layout.LOOK_AT, LOOKED_AT_NEVER_NS)
            self._write(layout.BEAT_INTERVAL, round(beat_interval_s * _SECOND_NS))
            pipes = (layout.KICK_FILE, layout.ASK_FILE, layout.STACKS_FILE, layout.SUSPECTS_FILE)
            for name in pipes:
                os.mkfifo(self.directory / name, 0o600)
            self.kick_fd = self._open(layout.KICK_FILE, os.O_NONBLOCK)
            self.ask_fd = self._open(layout.ASK_FILE, os.O_NONBLOCK)
            self.stacks_fd = self._open(layout.STACKS_FILE, os.O_NONBLOCK)
            self._suspects_fd = self._open(layout.SUSPECTS_FILE, os.O_NONBLOCK)
            self.notices = NoticePage(self.directory)
            self._fds.append(self.notices.fd)
        except OSError:
            self.close()
            raise

    def announce(self, look_at: float) -> None:
        """Say until when this agent looks by itself, monotonic seconds."""
        at_ns = max(1, min(round(look_at * _SECOND_NS), LOOKED_AT_NEVER_NS))
        with suppress(OSError):  # a full disk, on a file system that copies: every kick comes
            self._write(layout.LOOK_AT, at_ns)

    def drain_kicks(self) -> None:
        """Take all kicks there are, if the FIFO was not enlarged: one look answers them all."""
        with suppress(BlockingIOError):
            os.read(self.kick_fd, 65536)

    def read_suspects(self) -> list[tuple[int | None, str]]:
        """Take the accusations there are: whose rank, ``None``: its own, and why."""
        text = b""
        with suppress(OSError):  # mostly there are none
            text = os.read(self._suspects_fd, SUSPECTS_BYTES_MAX)
        suspects: list[tuple[int | None, str]] = []
        for line in text.splitlines():
            with suppress(ValueError, msgspec.DecodeError):
                suspects.append(msgspec.json.decode(line, type=_Suspect))
        return suspects

    def read(self) -> Snapshot | None:
        """Return what it says; None if it has no owner yet, or is a board no more."""
        header = _HEADER.unpack(self._read(0, _HEADER.size) or bytes(_HEADER.size))
        owner = header[layout.OWNER_PID]
        if not 0 < owner <= PID_MAX:
            return None
        step, heartbeats = header[layout.STEP], max(0, header[layout.HEARTBEATS])
        is_busy_time = header[layout.STEPS_BUSY] > 0
        timed = layout.STEPS_BUSY if is_busy_time else layout.STEPS_TIMED
        took = layout.BUSY_TIME if is_busy_time else layout.STEPS_TIME
        return Snapshot(
            owner_pid=owner,
            stack_signal=max(0, header[layout.STACK_SIGNAL]),
            answers=header[layout.ANSWERS] == 1,
            beat_at=_seconds(header[layout.BEAT_AT]),
            exiting_at=_seconds(header[layout.EXITING_AT]),
            is_debugged=header[layout.IS_DEBUGGED] == 1,
            progress_since=_seconds(header[layout.PROGRESS_SINCE]),
            step=step if heartbeats and step >= 0 else None,
            heartbeat_at=_seconds(header[layout.HEARTBEAT_AT]),
            heartbeats=heartbeats,
            step_time_s=_seconds(header[layout.STEP_TIME]),
            steps_total=max(0, header[layout.STEPS_TOTAL]),
            loss=_loss(header[layout.LOSS]),
            saved_step=max(0, header[layout.SAVED_STEP]),
            saved_at=_seconds(header[layout.SAVED_AT]),
            steps_timed=max(0, header[timed]),
            steps_s=_seconds(header[took]) or 0.0,
            is_busy_time=is_busy_time,
            gap_max_s=_seconds(header[layout.GAP_MAX]) or 0.0,
            gaps=max(0, header[layout.GAPS]),
            slots=self._read_slots(header[layout.SLOTS_USED]),
            sections=self._read_sections(header[layout.SECTIONS_USED]),
        )

    def close(self) -> None:
        """Remove it; a process that has it mapped keeps what is mapped."""
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _read_slots(self, used: int) -> tuple[Slot, ...]:
        """Beyond finding out which are open, closed slots cost nothing."""
        used = max(0, min(used, layout.SLOTS_MAX))
        first_byte, size = layout.SLOTS_FROM * layout.WORD_BYTES, _SLOT.size
        before = self._read(first_byte, used * size)
        deadlines = memoryview(before).cast("q")[:: layout.SLOT_WORDS]
        names = after = b""
        if any(deadlines):
            names = self._read(layout.NAMES_FROM_BYTE, used * layout.NAME_BYTES)
            after = self._read(first_byte, used * size)
        known, self._known = self._known, {}
        for slot in (slot for slot, deadline in enumerate(deadlines) if deadline):
            row = before[slot * size : (slot + 1) * size]
            # What changed in between may be half of one timer and half of another.
            if row != after[slot * size : (slot + 1) * size]:
                continue
            name, entry = names[layout.name_bytes(0, slot)], known.get(slot)
            # The same object for what did not change: it need not be compared again.
            if entry is None or entry[:2] != (row, name):
                entry = (row, name, _slot(slot, row, one_line(layout.decode_text(name))))
            self._known[slot] = entry
        return tuple(slot for _, _, slot in self._known.values() if slot is not None)

    def _read_sections(self, used: int) -> dict[str, Tally]:
        used = max(0, min(used, layout.SECTIONS_MAX))
        rows = self._read(layout.SECTIONS_FROM * layout.WORD_BYTES, used * _SECTION.size)
        names = self._read(layout.SECTION_NAMES_FROM_BYTE, used * layout.NAME_BYTES)
        sections: dict[str, Tally] = {}
        for section, (times, longest) in enumerate(_SECTION.iter_unpack(rows)):
            name = one_line(layout.decode_text(names[layout.name_bytes(0, section)]))
            if name and times > 0 and longest > 0:
                sections[name] = (times, longest / _SECOND_NS)
        return sections

    def _read(self, first_byte: int, size: int) -> bytes:
        """Return so many bytes; none if the file does not have them any more."""
        with suppress(OSError):
            data = os.pread(self._fd, size, first_byte)
            if len(data) == size:
                return data
        return b""

    def _write(self, word: int, value: int) -> None:
        os.pwrite(self._fd, _WORD.pack(value), word * layout.WORD_BYTES)

    def _open(self, name: str, flags: int) -> int:
        fd = os.open(self.directory / name, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
        self._fds.append(fd)
        return fd


def _slot(index: int, row: bytes, name: str) -> Slot | None:
    """Return what the words of a slot mean; None if they mean nothing."""
    # In the order of `layout.SLOT_DEADLINE` and those after it.
    deadline_ns, since_ns, limit_ns, signum, kind, grace_ns, *_ = _SLOT.unpack(row)
    is_open_ended = deadline_ns == layout.OPEN_ENDED
    if kind not in _PURPOSES or since_ns <= 0 or (deadline_ns < 0 and not is_open_ended):
        return None
    known = signum if is_signal(signum) else 0  # if there is none such: only report
    return Slot(
        slot=index,
        name=name,
        is_section=kind == layout.KIND_SECTION,
        since=since_ns / _SECOND_NS,
        deadline=None if is_open_ended else deadline_ns / _SECOND_NS,
        limit_s=AUTO if limit_ns == layout.AUTO else _seconds(limit_ns),
        signal=None if signum == layout.SIGNAL_DEFAULT else known,
        purpose=_PURPOSES[kind],
        grace_s=_seconds(grace_ns) if kind == layout.KIND_HARD_TIMEOUT else None,
    )


def _loss(word: int) -> float | None:
    """None for one that was not told, or is not finite."""
    (loss,) = _DOUBLE.unpack(_WORD.pack(word))
    return float(loss) if word and math.isfinite(loss) else None


def _seconds(word: int) -> float | None:
    """None for "never", and for what can't be."""
    return word / _SECOND_NS if word > 0 else None
