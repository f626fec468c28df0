"""Shell. What a process writes to its user: through a bounded queue, from a thread, if it can.

A terminal stopped with Ctrl-S or a full pipe holds up the thread and nothing else. See ADR 21.
Log lines, reports and errors all come this way, and leave it without tokens.
"""

import errno
import os
import select
import sys
import threading
from contextlib import suppress
from typing import TextIO

from drumbeat.access.redaction import without_tokens
from drumbeat.command.live_line import device_of, line_at
from drumbeat.text.format import count

# What a console has not taken yet: a long report fits. Texts above it are dropped, counted, and
# their number is said when the console takes something again.
PENDING_BYTES_MAX = 4 * 1024 * 1024
STALL_S = 1.0  # how long a console may take nothing at the end before the rest is given up
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})  # errors of a full disk; there may be room later
# Between two attempts to write to a full disk: the kernel sends no event when there is room.
ROOM_RETRY_S = 0.5
_CHUNK_BYTES = 4096  # written at once, so that a slow console can be told from a stalled one

_console: list["Console"] = []  # where this process writes; one at a time


def open_missing() -> None:
    """Put /dev/null where a standard stream is closed (``2>&-``); before anything else is opened.

    The next file opened would otherwise get the number of the missing stream, and with
    it all that is written there, by this process and by those that it starts.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            # The lowest free number is this one.
            os.set_inheritable(os.open(os.devnull, os.O_WRONLY if fd else os.O_RDONLY), True)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def write_text(text: str) -> None:
    """Write what is no log line, such as a report, behind the lines logged so far."""
    if _console:
        _console[0].write(text)
    else:
        print(without_tokens(text), end="", file=sys.stderr, flush=True)


def open_console(stream: TextIO) -> "Console":
    """Have this process write there from now on."""
    close_console()
    _console.append(Console(stream))
    return _console[0]


def close_console() -> None:
    """Write what is left for as long as the console takes it; what comes then goes unqueued."""
    while _console:
        _console.pop().close()


class Console:
    """A console. Safe to use from any thread.

    Of the stream's descriptor a copy is kept; a stream that has none, as in notebooks and
    tests, is written to at once.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._encoding = stream.encoding or "utf-8"
        try:
            self._fd = os.dup(stream.fileno())
        except (OSError, ValueError, AttributeError):
            self._fd = -1
        self._device = device_of(self._fd)
        self._changed = threading.Condition()
        # All below is guarded by the condition.
        self._pending = bytearray()
        self._dropped = 0
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def write(self, text: str) -> None:
        """Queue a text, never blocking; without room it is dropped and counted."""
        text = without_tokens(text)
        if self._fd < 0:
            with suppress(OSError, ValueError):  # closed, or its reader is gone
                self._stream.write(text)
                self._stream.flush()
            return
        data = text.encode(self._encoding, "backslashreplace")
        with self._changed:
            if self._is_closed:
                return
            if len(self._pending) + len(data) > PENDING_BYTES_MAX:
                self._dropped += 1
                return
            self._append(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="console", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self) -> None:
        """Do nothing: the thread writes at once. What a stream has to have."""

    def close(self, stall_s: float = STALL_S) -> None:
        """Write what is left, as long as the console takes something, and end the thread."""
        is_flowing = True
        with self._changed:
            while is_flowing and (before := len(self._pending)):
                is_flowing = self._changed.wait_for(lambda: len(self._pending) != before, stall_s)
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is None:
            if self._fd >= 0:
                os.close(self._fd)
        elif is_flowing:  # else it ends when its console flows again, or with the process
            self._thread.join()

    def _append(self, data: bytes) -> None:
        if self._dropped:
            texts = count(self._dropped, "text")
            data = f"({texts} not shown: this console took nothing)\n".encode() + data
            self._dropped = 0
        self._pending += data

    def _awaits_room(self) -> bool:
        """Wait before the next attempt; return whether there is to be one."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed, ROOM_RETRY_S)
            return not self._is_closed

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        is_there = True
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._dropped or self._is_closed)
                if not self._pending and self._dropped:
                    self._append(b"")
                if not self._pending:
                    break
                data = self._pending[:_CHUNK_BYTES]
            taken = len(data)
            if is_there:
                poll.poll()  # the descriptor may be one that others made non-blocking
                try:
                    line = line_at(self._device) if self._device else None
                    taken = os.write(self._fd, data) if line is None else line.write(data)
                except BlockingIOError:
                    taken = 0
                except OSError as error:
                    if error.errno in NO_ROOM and self._awaits_room():
                        continue
                    is_there = False
            with self._changed:
                del self._pending[:taken]
                self._changed.notify_all()
        os.close(self._fd)
