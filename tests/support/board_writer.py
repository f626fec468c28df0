"""A worker's side of a board, without the SDK: writes words as its layout says."""

import mmap
import os
import time
from pathlib import Path

from worker_sdk.board import layout

SECOND_NS = 1_000_000_000


class BoardWriter:
    """Maps a board as its owner does."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        fd = os.open(directory / layout.BOARD_FILE, os.O_RDWR)
        self.map = mmap.mmap(fd, layout.BOARD_BYTES)
        os.close(fd)
        self.words = memoryview(self.map).cast("q")

    def claim(self, pid: int | None = None, **words: int) -> None:
        """Become the owner; ``words`` are those of the header, by name."""
        for name, value in words.items():
            self.words[getattr(layout, name)] = value
        self.words[layout.OWNER_PID] = os.getpid() if pid is None else pid

    def open_slot(
        self,
        slot: int,
        name: str,
        limit_s: float,
        *,
        kind: int = layout.KIND_TIMER,
        signal: int = layout.SIGNAL_DEFAULT,
    ) -> None:
        """Open a timer or section, from now on."""
        now = time.monotonic_ns()
        limit_ns = round(limit_s * SECOND_NS)
        self.words[layout.slot_word(slot, layout.SLOT_DEADLINE)] = 0
        self.words[layout.slot_word(slot, layout.SLOT_SINCE)] = now
        self.words[layout.slot_word(slot, layout.SLOT_LIMIT)] = limit_ns
        self.words[layout.slot_word(slot, layout.SLOT_SIGNAL)] = signal
        self.words[layout.slot_word(slot, layout.SLOT_KIND)] = kind
        self.name_slot(slot, layout.encode_text(name))
        self.words[layout.SLOTS_USED] = max(self.words[layout.SLOTS_USED], slot + 1)
        self.words[layout.slot_word(slot, layout.SLOT_DEADLINE)] = now + limit_ns

    def name_slot(self, slot: int, raw: bytes) -> None:
        """Write a slot's name, whatever it is."""
        self.map[layout.name_bytes(layout.NAMES_FROM_BYTE, slot)] = raw

    def close_slot(self, slot: int) -> None:
        """Close a timer or section."""
        self.words[layout.slot_word(slot, layout.SLOT_DEADLINE)] = 0

    def kick(self) -> None:
        """Ask the agent to look."""
        fd = os.open(self.directory / layout.KICK_FILE, os.O_WRONLY | os.O_NONBLOCK)
        os.write(fd, b"k")
        os.close(fd)

    def close(self) -> None:
        """Unmap it."""
        self.words.release()
        self.map.close()
