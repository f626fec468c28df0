"""A board as an agent makes it for a worker, and what stands on it.

Words are read by their place in ``worker_sdk.board.layout``, without any of the code
that writes them.
"""

import mmap
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from worker_sdk import runtime
from worker_sdk.board import layout


@dataclass(frozen=True, slots=True)
class Seen:
    """One slot that is open and not suspended."""

    slot: int
    name: str
    deadline: int
    since: int
    limit: int
    signal: int
    kind: int


class BoardDirectory:
    """The private directory of one worker; a context manager."""

    def __init__(
        self, path: Path, version: int = layout.VERSION, size: int = layout.BOARD_BYTES
    ) -> None:
        path.mkdir(mode=0o700)
        self.path = path
        board = path / layout.BOARD_FILE
        board.write_bytes(version.to_bytes(8, "little").ljust(size, b"\0"))
        board.chmod(0o600)
        fifos = []
        for name in (layout.KICK_FILE, layout.STACKS_FILE):
            os.mkfifo(path / name, 0o600)
            fifos.append(os.open(path / name, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
        self.kick, self.stacks = fifos
        with board.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), size)
        self._words = memoryview(self._page).cast("q")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._words.release()
        self._page.close()
        os.close(self.kick)
        os.close(self.stacks)

    def __getitem__(self, word: int) -> int:
        return self._words[word]

    def __setitem__(self, word: int, value: int) -> None:
        self._words[word] = value

    def is_idle(self) -> bool:
        """Return whether no slot at all is armed, also beyond those said to be in use."""
        return not any(
            self._words[layout.slot_word(slot, layout.SLOT_DEADLINE)]
            for slot in range(layout.SLOTS_MAX)
        )

    def slots(self) -> list[Seen]:
        """Return the slots that count, as a reader finds them, by number."""
        found = []
        for slot in range(self._words[layout.SLOTS_USED]):
            at = layout.slot_word(slot, 0)
            deadline, since, limit, signal, kind = self._words[at : at + 5]
            if deadline:
                name = self._text(layout.NAMES_FROM_BYTE, slot)
                found.append(Seen(slot, name, deadline, since, limit, signal, kind))
        return found

    def names(self) -> list[str]:
        """Return the names of the slots that count."""
        return [seen.name for seen in self.slots()]

    def sections(self) -> dict[str, tuple[int, int]]:
        """Return how often each section was left, and the longest time it took."""
        return {
            self._text(layout.SECTION_NAMES_FROM_BYTE, number): (
                self._words[layout.section_word(number, layout.SECTION_COUNT)],
                self._words[layout.section_word(number, layout.SECTION_MAX)],
            )
            for number in range(self._words[layout.SECTIONS_USED])
        }

    def kicks(self) -> int:
        """Return how many bytes were in the pipe, and empty it."""
        return len(read_all(self.kick))

    def _text(self, names_from_byte: int, number: int) -> str:
        return layout.decode_text(self._page[layout.name_bytes(names_from_byte, number)])


def leave() -> None:
    """Give the SDK's board up, as if this process had never begun. The next call begins anew."""
    state = runtime.STATE
    with state.lock:
        board, state.board = state.board, None
        attachment, state.attachment = state.attachment, None
        if attachment is not None:
            attachment.close()
        state.stop.set()
        state.stop = threading.Event()
        if board is not None:
            board.words[layout.OWNER_PID] = 0
            runtime.give_up(board)


def read_all(pipe: int) -> bytes:
    """Return what is in a pipe that does not block."""
    found = b""
    try:
        while more := os.read(pipe, 65_536):
            found += more
    except BlockingIOError:
        pass
    return found
