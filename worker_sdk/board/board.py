"""Shell. One process's hold on its worker's board: slots, names, kicks.

Everything here may be called by any thread and any signal handler, and may be ended
anywhere by an exception that another thread or a signal handler raises. There are no
locks: a handler would wait for the code it interrupted. What is shared changes by
steps between which CPython lets no other thread run: one call of a built-in container,
or a few operations without any call. A slot is armed by its last step, and
disarmed by the first.

A board that is given up goes on working, on a page without a reader: so no caller has
to ask whether there is an agent, and what was opened before is closed as ever.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import logging
import mmap
import os
import struct
import sys
import threading
from time import monotonic_ns
from typing import Any
from weakref import ref

from worker_sdk.board import layout
from worker_sdk.board.layout import (
    LOOK_AT,
    OPEN_ENDED,
    SLOT_GRACE,
    SLOT_WORDS,
    SLOTS_FROM,
    SLOTS_USED,
)
from worker_sdk.board.notice_page import NoticePage, claim_page

log = logging.getLogger("worker_sdk")

REFUSED = -1  # instead of a slot: there was none

# Since, limit, signal and kind stand next to each other.
_pack_slot = struct.Struct("4q").pack_into
_SINCE_BYTE = (SLOTS_FROM + layout.SLOT_SINCE) * layout.WORD_BYTES
_SLOT_BYTES = SLOT_WORDS * layout.WORD_BYTES


class Thread:
    """What one thread holds open: its slots, the latest last, and how many are sections."""

    __slots__ = ("held", "sections")

    def __init__(self) -> None:
        self.held: list[int] = []
        self.sections = 0


class _Threads(threading.local):
    def __init__(self) -> None:
        self.mine = Thread()


class Board:
    """A board, and what of it is in use."""

    def __init__(
        self,
        page: mmap.mmap | None = None,
        files: tuple[int, ...] = (),
        notices: NoticePage | None = None,
    ) -> None:
        """Take over an empty page that an agent reads, with the ``files`` of it and its kicks."""
        self.raw = memoryview(bytearray(layout.BOARD_BYTES) if page is None else page)
        self.words = self.raw.cast("q")
        self._files = files
        self.is_watched = bool(files)
        self.notices = notices or NoticePage()
        self.threads = _Threads()
        self.free = list(range(layout.SLOTS_MAX - 1, -1, -1)) if has_lock() else []
        self.holders: list[list[int]] = [[]] * layout.SLOTS_MAX
        # Of each open block the only weak reference: it is called only if the block goes
        # without having closed its slot, when an exception from outside strikes on the very
        # threshold of its exit. (A `__del__` would be called always, and swallow the
        # exceptions that strike in it.) The last place is that of `REFUSED`.
        self.leak_guards: list[ref[Any] | None] = [None] * (layout.SLOTS_MAX + 1)
        self.on_lost = self._on_lost
        self._names = [""] * layout.SLOTS_MAX
        self._section_numbers: dict[str, int] = {}
        self._fresh_sections = itertools.count()
        self._is_refusal_logged = False
        # Slots that are known by their scope: the user's, and the SDK's own.
        self.acquired: dict[str, int] = {}
        self.own: dict[str, int] = {}
        # Of heartbeats; see `timers.heartbeat`.
        self.beater: Thread | None = None
        self.beat_before = 0
        self.step_before = layout.NO_STEP
        self.has_section_between = False
        self.paused_ns = 0

    def open_slot(
        self, name: str, after_ns: int, limit: int, signal: int, kind: int, grace_ns: int = 0
    ) -> int:
        """Arm a slot for the calling thread, ``REFUSED`` if all are open.

        Open-ended if ``after_ns`` is 0. The rest as in the words of a slot.
        """
        mine = self.threads.mine
        free = self.free
        try:
            # As a call, `pop` might be followed by an exception from outside.
            slot = free[-1]
            del free[-1]
        except IndexError:
            if self.is_watched and not self._is_refusal_logged:
                self._is_refusal_logged = True
                most = layout.SLOTS_MAX
                log.warning("%d timers and sections are open: more are not watched", most)
            return REFUSED
        at = SLOTS_FROM + slot * SLOT_WORDS
        try:
            self.holders[slot] = mine.held
            mine.held.append(slot)
            if self._names[slot] != name:
                self._write_name(slot, name)
            if self.words[SLOTS_USED] <= slot:
                self.words[SLOTS_USED] = slot + 1
            now = monotonic_ns()
            _pack_slot(self.raw, _SINCE_BYTE + slot * _SLOT_BYTES, now, limit, signal, kind)
            if grace_ns:
                self.words[at + SLOT_GRACE] = grace_ns
            deadline = now + after_ns if after_ns else OPEN_ENDED
            self.words[at] = deadline
            if deadline < self.words[LOOK_AT]:
                self.kick()
        except BaseException:
            self.words[at] = 0
            self.close_slot(slot)
            raise
        return slot

    def close_slot(self, slot: int) -> None:
        """Disarm a slot and let others have it; once."""
        self.words[SLOTS_FROM + slot * SLOT_WORDS] = 0
        held = self.holders[slot]
        if held and held[-1] == slot:
            del held[-1]
        elif slot in held:
            held.remove(slot)
        self.free.append(slot)

    def resume(self, slot: int, deadline: int, pause_ns: int, held: list[int]) -> None:
        """Arm a suspended slot as if the pause had not been, unless it was closed in it."""
        at = SLOTS_FROM + slot * SLOT_WORDS
        if slot not in held or self.words[at]:
            return
        if deadline != OPEN_ENDED:
            deadline += pause_ns
        self.words[at + layout.SLOT_SINCE] += pause_ns
        self.words[at] = deadline
        if deadline < self.words[LOOK_AT]:
            self.kick()

    def note_section(self, name: str, took_ns: int) -> None:
        """Remember how long a section took."""
        numbers = self._section_numbers
        is_new = name not in numbers
        if is_new and len(numbers) < layout.SECTIONS_MAX:
            # Of two threads with the same new name one wins, and a number stays unused.
            numbers.setdefault(name, next(self._fresh_sections))
        number = numbers.get(name, layout.SECTIONS_MAX)
        if number >= layout.SECTIONS_MAX:
            return
        if is_new:
            at = layout.name_bytes(layout.SECTION_NAMES_FROM_BYTE, number)
            self.raw[at] = layout.encode_text(name)
            if self.words[layout.SECTIONS_USED] <= number:
                self.words[layout.SECTIONS_USED] = number + 1
        longest = layout.section_word(number, layout.SECTION_MAX)
        if self.words[longest] < took_ns:  # noqa: PLR1730 - a call would let others in
            self.words[longest] = took_ns
        self.words[layout.section_word(number, layout.SECTION_COUNT)] += 1

    def kick(self) -> None:
        """Ask the agent to look now. Never blocks, never fails."""
        if self.is_watched:
            # If it fails, so many kicks are in the pipe that one more says nothing.
            with contextlib.suppress(OSError):
                os.write(self._files[1], b"\1")

    def give_up(self) -> None:
        """Go on with a page without a reader; what was opened for the shared one is closed."""
        self.is_watched = False
        raw = memoryview(bytearray(layout.BOARD_BYTES))
        self.words, self.raw = raw.cast("q"), raw
        self.notices = NoticePage()
        files, self._files = self._files, ()
        for file in files:
            os.close(file)

    def renewed(self) -> Board:
        """Return a board on the same page, with all slots closed; this one is given up."""
        words, page, files, notices = self.words, self.raw.obj, self._files, self.notices
        self._files = ()
        self.give_up()
        _close_slots(words)
        renewed = Board(page if isinstance(page, mmap.mmap) else None, files, notices)
        renewed._section_numbers = self._section_numbers
        renewed._fresh_sections = self._fresh_sections
        return renewed

    def _on_lost(self, guard: ref[Any]) -> None:
        for slot in range(layout.SLOTS_MAX):
            if self.leak_guards[slot] is guard:
                self.words[SLOTS_FROM + slot * SLOT_WORDS] = 0
                self.leak_guards[slot] = None
                self.close_slot(slot)

    def _write_name(self, slot: int, name: str) -> None:
        self._names[slot] = ""  # it is neither the old one nor the new while it changes
        self.raw[layout.name_bytes(layout.NAMES_FROM_BYTE, slot)] = layout.encode_text(name)
        self._names[slot] = name


def has_lock() -> bool:
    """Return whether one thread runs Python code at a time; once it is so, it stays so."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def claim(directory: str) -> Board:
    """Make the worker's board this process's own, all but its name.

    Raises ``BlockingIOError`` if another process has it, else ``OSError`` or ``ValueError``.
    """
    if not has_lock():
        raise ValueError("this Python runs threads without its global lock (PYTHON_GIL=0)")
    with contextlib.ExitStack() as opened:
        board = open_file(directory, layout.BOARD_FILE)
        opened.callback(os.close, board)
        fcntl.lockf(board, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(board).st_size != layout.BOARD_BYTES:
            raise ValueError(f"{directory}: its board has another size")
        page = mmap.mmap(board, layout.BOARD_BYTES)
        words = memoryview(page).cast("q")
        if (version := words[layout.VERSION_WORD]) != layout.VERSION:
            why = f"its board is of version {version}, not {layout.VERSION}"
            raise ValueError(f"{directory}: {why}")
        kick = open_file(directory, layout.KICK_FILE)
        opened.pop_all()
    # What an earlier owner left, its name first.
    words[layout.OWNER_PID] = 0
    _close_slots(words)
    of_sections = range(layout.SECTIONS_FROM, layout.section_word(layout.SECTIONS_MAX, 0))
    for word in (*range(layout.OWNER_PID, layout.HEADER_WORDS), *of_sections):
        words[word] = 0
    words[layout.STEP] = layout.NO_STEP
    return Board(page, (board, kick), claim_page(directory))


def open_file(directory: str, name: str) -> int:
    """Open a file of the worker's directory. Raises ``OSError``.

    A pipe for reading, too: it then never lacks a reader, so a write to it raises no SIGPIPE
    when the agent has died.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
    return os.open(f"{directory}/{name}", flags)


def _close_slots(words: memoryview[int]) -> None:
    for slot in range(layout.SLOTS_MAX):
        words[layout.slot_word(slot, layout.SLOT_DEADLINE)] = 0
