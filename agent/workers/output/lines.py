"""Pure. A stream of bytes, cut into whole lines.

Works on blocks of many lines at once, because work for each single line is what makes following
a busy log slow. Bytes are passed on as they are.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

LINE_BYTES_MAX = 1024 * 1024
"""Longest unfinished line that is kept; of a longer one each part becomes a line."""

_LINE_END = re.compile(rb"\r?\n|\r")
_CHARACTER_BYTES_MAX = 4


class LineCutter:
    """Turns chunks into blocks that end with a line end.

    A lone carriage return ends a line too, so that a progress bar is seen to move.
    """

    def __init__(self, *, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        self._line_bytes_max = line_bytes_max
        self._rest = bytearray()

    @property
    def held_bytes(self) -> int:
        """Bytes of the unfinished line."""
        return len(self._rest)

    def feed(self, chunk: bytes) -> bytes:
        """Return the lines that `chunk` completes; the beginning of the next one is kept."""
        cut = chunk.rfind(b"\n") + 1
        # A carriage return at the very end may be the first half of a line end.
        cut = max(cut, chunk.rfind(b"\r", cut, len(chunk) - 1) + 1)
        if not cut and self._rest.endswith(b"\r"):
            block = bytes(self._rest)
            self._rest[:] = chunk
            return block + self._shorten()
        if not cut:
            self._rest += chunk
            return self._shorten()
        block = bytes(self._rest) + chunk[:cut] if self._rest else chunk[:cut]
        self._rest[:] = chunk[cut:]
        return block + self._shorten()

    def end(self) -> bytes:
        """Return the last line if it was not finished, with the line end that it lacks."""
        block = bytes(self._rest)
        self._rest.clear()
        return block if not block or block.endswith(b"\r") else block + b"\n"

    def _shorten(self) -> bytes:
        """Take as many parts off an overlong rest as necessary."""
        parts = bytearray()
        while len(self._rest) > self._line_bytes_max:
            cut = _character_start(self._rest, self._line_bytes_max)
            parts += self._rest[:cut] + b"\n"
            del self._rest[:cut]
        return bytes(parts)


def _character_start(data: bytearray, position: int) -> int:
    """Return the beginning of the UTF-8 character at `position`; it, if there is none."""
    for start in range(position, max(0, position - _CHARACTER_BYTES_MAX), -1):
        if data[start] & 0xC0 != 0x80:
            return start
    return position


def prefixed(block: bytes, prefix: bytes) -> bytes:
    """Return the whole lines of `block` with `prefix` before each."""
    if not block or not prefix:
        return block
    if b"\r" in block:
        return b"".join(prefix + line for line in _lines(block))
    return b"".join((prefix, block[:-1].replace(b"\n", b"\n" + prefix), block[-1:]))


def matching(block: bytes, needles: Sequence[bytes]) -> bytes:
    """Return the lines of `block` that contain any of `needles`."""
    if not any(needle in block for needle in needles):
        return b""
    return b"".join(line for line in _lines(block) if any(needle in line for needle in needles))


def _lines(block: bytes) -> list[bytes]:
    starts = [0, *(match.end() for match in _LINE_END.finditer(block))]
    return [block[start:end] for start, end in pairwise(starts)]
