"""Shell. What a worker gets as its standard error where a report is to have the end of it.

A pipe, or a terminal if the agent has one, so that progress bars and colours stay. If nothing is
taken where it is shown, the pipe fills and the worker waits, as if it wrote there itself; nothing
is lost or grows.
"""

import fcntl
import os
import termios
import threading
import tty
from collections.abc import Callable
from contextlib import suppress

from agent.workers.output.lines import LAST_BYTES_MAX, last_lines
from agent.workers.output.sink import Sink

CHUNK_BYTES = 64 * 1024
"""Read from one worker before the next has its turn."""

PIPE_BYTES = 1024 * 1024
"""Asked of the kernel for each pipe, so that a worker need not wait for the thread."""

DRAIN_BYTES_MAX = 2 * PIPE_BYTES
"""Most that is read at once of what is left: all of it, unless a process goes on writing."""


class StderrPipe:
    """One worker's standard error, opened by its ``path``; a source of a `Tail`.

    If ``screen``, where it is shown in the end, is a terminal, it is one; else a pipe at the path
    given. Without ``sinks`` only its end is remembered. Any thread may call all but `step`. Raises
    ``OSError`` if the system gives neither.
    """

    turn = 0
    watch = 0  # none is needed

    def __init__(
        self, path: str, screen: int, sinks: tuple[Sink, ...], wake: Callable[[], None]
    ) -> None:
        self.sinks = sinks
        self.is_ended = False
        self._wake = wake
        self._lock = threading.Lock()
        # All below is guarded by the lock.
        self._arrived = bytearray()
        self._end = bytearray()
        self._screen = screen if os.isatty(screen) else -1
        # What is read first; then what only keeps it open, for it must not end with a writer.
        self._fds: tuple[int, ...]
        if self._screen >= 0:
            master, slave = self._fds = os.openpty()
            # Bytes pass unchanged here; what a line end means is up to the agent's terminal.
            tty.setraw(slave)
            os.set_blocking(master, False)
            self.path = os.ttyname(slave)
            self._copy_size()
            return
        self.path = path
        os.mkfifo(path, 0o600)
        try:
            # Open for writing too, or it would end whenever there is no worker.
            self._fds = (os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC),)
        except OSError:
            os.unlink(path)  # noqa: PTH108 - a text for the worker
            raise
        with suppress(OSError):  # users have a limit for all their pipes
            fcntl.fcntl(self._fds[0], fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    @property
    def pipe_fd(self) -> int:
        """What to wait for; -1 once it is finished."""
        return self._fds[0] if self._fds else -1

    def step(self) -> bool:
        """Pass on what has come; return whether there may be more to do at once."""
        with self._lock:
            chunk = bytes(self._arrived) or self._read()
            self._arrived.clear()
            self.is_ended = not self._fds
            if chunk and self._fds and self._screen >= 0:
                self._copy_size()  # for whatever it writes next
        for sink in self.sinks:
            sink.add(chunk)
        return bool(chunk)

    def last_lines(self) -> str:
        """Return the last lines that the worker, which has ended, wrote."""
        with self._lock:
            self._drain()
            return last_lines(bytes(self._end))

    def finish(self) -> None:
        """Take what is left of a worker that is gone, descendants included."""
        with self._lock:
            if not self._fds:
                return
            self._drain()
            for fd in self._fds:
                os.close(fd)
            self._fds = ()
            if self._screen < 0:
                with suppress(OSError):
                    os.unlink(self.path)  # noqa: PTH108

    close = finish

    def _read(self) -> bytes:
        """Return what is there, at most one chunk; nothing if there is nothing."""
        try:
            chunk = os.read(self._fds[0], CHUNK_BYTES) if self._fds else b""
        except OSError:  # above all BlockingIOError
            return b""
        self._end += chunk
        del self._end[:-LAST_BYTES_MAX]
        return chunk

    def _drain(self) -> None:
        size = 0
        while size < DRAIN_BYTES_MAX and (chunk := self._read()):
            size += len(chunk)
            if self.sinks:
                self._arrived += chunk
        self._wake()

    def _copy_size(self) -> None:
        with suppress(termios.error):
            termios.tcsetwinsize(self._fds[0], termios.tcgetwinsize(self._screen))
