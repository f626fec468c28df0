"""Shell. The last bytes of a stream, kept in memory and read by places in it."""

from __future__ import annotations

import threading
from typing import NamedTuple

from drumbeat.agent.workers.output.lines import cut_of, last_lines

KEPT_BYTES_MAX = 256 * 1024
PIECE_BYTES_MAX = 32 * 1024


class Place(NamedTuple):
    """A place in a stream: what is before it."""

    offset: int = 0
    lines: int = 0


class Piece(NamedTuple):
    """What is read of a stream at once, whole lines, and how many before it are lost."""

    next: Place
    data: bytes = b""
    missed: int = 0


class Ring:
    """Takes a stream in; has the end of it, and where that begins. Any thread may call."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._lock = threading.Lock()
        # All below is guarded by the lock.
        self.start = Place()
        self.data = bytearray()
        self._bytes_max = bytes_max

    def end(self) -> int:
        """Return how many bytes the whole stream has so far."""
        with self._lock:
            return self.start.offset + len(self.data)

    def add(self, chunk: bytes) -> None:
        """Take the next bytes in, at the cost of the oldest."""
        with self._lock:
            self.data += chunk
            if (surplus := len(self.data) - self._bytes_max) > 0:
                self.start = moved(self.start, self.data, surplus)
                del self.data[:surplus]

    def last_lines(self) -> str:
        """Return the last lines that are kept."""
        with self._lock:
            return last_lines(bytes(self.data))

    def tail(self, lines: int) -> Place:
        """Return where the last lines begin."""
        with self._lock:
            return moved(self.start, self.data, tail_at(self.data, lines))

    def read(self, place: Place, *, is_last: bool) -> Piece:
        """Return what is behind a place; ``is_last``: also a line that is not finished."""
        missed = 0
        with self._lock:
            if place.offset < self.start.offset:
                at = self.data.find(b"\n") + 1  # the first line is not whole
                begin = moved(self.start, self.data, at)
                missed, place = max(0, begin.lines - place.lines), begin
            at = place.offset - self.start.offset
            chunk = bytes(self.data[at : at + PIECE_BYTES_MAX])
        data = whole_lines(chunk, is_last=is_last)
        return Piece(moved(place, data, len(data)), data, missed)


def moved(place: Place, data: bytes | bytearray, count: int) -> Place:
    """Return the place that is so many bytes of ``data`` behind a place."""
    return Place(place.offset + count, place.lines + data.count(b"\n", 0, count))


def tail_at(data: bytes | bytearray, lines: int) -> int:
    """Return where the last lines begin; the last one may be unfinished."""
    at = len(data) - data.endswith(b"\n")
    if lines <= 0:
        return data.rfind(b"\n") + 1
    for _ in range(lines):
        if (at := data.rfind(b"\n", 0, at)) < 0:
            return 0
    return at + 1


def whole_lines(chunk: bytes, *, is_last: bool) -> bytes:
    """Return the whole lines of a chunk; all of it if it has none and more would not fit."""
    if is_last and len(chunk) < PIECE_BYTES_MAX:
        return chunk
    cut = cut_of(chunk)
    return chunk[:cut] if cut or len(chunk) < PIECE_BYTES_MAX else chunk
