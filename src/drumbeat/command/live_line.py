"""Shell. One line at the end of a terminal that goes out of the way of all that is written there.

It is drawn without a line end and erased before anything else of this process is written. Nothing
here waits: a terminal that takes nothing now shows it later. The cursor is never hidden, so that a
process that is killed leaves a line of text behind and nothing else.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress

from drumbeat.text.format import one_line

_ERASE = b"\r\x1b[K"
# Not drawn anew more often between lines that come fast.
DRAW_INTERVAL_S = 0.1
WIDTH_LEAST, WIDTH_DEFAULT = 20, 80

_open: list[LiveLine] = []  # that of this process, if it has one


class LiveLine:
    """Safe to use from any thread."""

    def __init__(self, fd: int) -> None:
        """Begin at a terminal. Raises ``OSError`` if it can't be written to without waiting."""
        # Opened anew: the flag belongs to all processes that share a descriptor.
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        self._fd = os.open(f"/proc/self/fd/{fd}", flags)
        self.device = os.fstat(self._fd).st_rdev
        self._lock = threading.Lock()  # held for no longer than such a write takes
        # All below is guarded by the lock.
        self._text = b""
        self._is_shown = False
        self._is_at_start = True  # of a line: nothing stands before the cursor
        self._drawn_at = 0.0

    def show(self, text: str) -> None:
        """Show another text, as much of it as there is room for; empty: none."""
        with self._lock, suppress(OSError):
            self._text = one_line(text).encode("ascii", "replace")
            self._draw()

    def write(self, data: bytes | bytearray) -> int:
        """Write what is no part of the line. Raises ``BlockingIOError``, as ``os.write``."""
        with self._lock:
            if self._fd < 0:  # closed meanwhile; the next attempt goes its own way
                raise BlockingIOError
            self._erase()
            taken = os.write(self._fd, data)
            if taken:
                self._is_at_start = data[taken - 1 : taken] == b"\n"
            if taken == len(data) and time.monotonic() - self._drawn_at >= DRAW_INTERVAL_S:
                with suppress(OSError):
                    self._draw()
            return taken

    def close(self) -> None:
        """Erase it; what is written from now on goes its own way."""
        if self in _open:
            _open.remove(self)
        with self._lock:
            with suppress(OSError):
                self._erase()
            os.close(self._fd)
            self._fd = -1

    def _draw(self) -> None:
        """Draw it, unless a line stands there that is not finished, or the shell has its turn."""
        if self._fd < 0 or not self._is_at_start or not self._is_in_foreground():
            return
        width = os.get_terminal_size(self._fd).columns or WIDTH_DEFAULT
        text = self._text[: width - 1] if width >= WIDTH_LEAST else b""
        if text or self._is_shown:
            os.write(self._fd, _ERASE + text)
        self._is_shown, self._drawn_at = bool(text), time.monotonic()

    def _erase(self) -> None:
        if self._is_shown:
            os.write(self._fd, _ERASE)
            self._is_shown = False

    def _is_in_foreground(self) -> bool:
        """Whether this process may write without being stopped for it, as a job of a shell."""
        try:
            return os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:  # it is not the terminal that controls this process
            return True


def open_line(fd: int) -> LiveLine | None:
    """Begin a line at a terminal; ``None`` where there can be none."""
    is_shown = os.isatty(fd) and os.environ.get("TERM", "") not in ("", "dumb")
    if not is_shown or os.environ.get("CI") or _open:
        return None
    with suppress(OSError):
        _open.append(LiveLine(fd))
        return _open[0]
    return None


def line_at(device: int) -> LiveLine | None:
    """Return the line at this terminal, if there is one now."""
    return _open[0] if _open and _open[0].device == device else None


def device_of(fd: int) -> int:
    """Return what tells a terminal from others; 0 for anything else."""
    try:
        return os.fstat(fd).st_rdev if os.isatty(fd) else 0
    except OSError:
        return 0
