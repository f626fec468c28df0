"""Shell. What a `Tail` reads and where it writes: workers' files and pipes, and their destinations.

No step of these ever waits, neither for a worker nor for a destination that is slow or gone.
"""

from __future__ import annotations

import fcntl
import logging
import os
import select
import socket
import stat
import struct
import termios
import threading
import tty
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar, TextIO

from agent.workers.output.lines import LAST_BYTES_MAX, LineCutter, last_lines, matching, prefixed

_LOGGER = logging.getLogger(__name__)

CHUNK_BYTES = 256 * 1024
"""Read from one source before the next has its turn."""

PIPE_BYTES = 1024 * 1024
"""Asked of the kernel for each pipe, so that a worker need not wait for the thread."""

DRAIN_BYTES_MAX = 2 * PIPE_BYTES
"""Most that is read at once of what is left: all of it, unless a process goes on writing."""

PENDING_BYTES_MAX = 1024 * 1024
"""Above this a sink is full; the rest is safe in its file."""


class Sink:
    """A destination, and what it has not taken yet: ``pending``.

    Of a descriptor a copy is kept until `close`, at ``fd``. A text stream without one, as notebooks
    have, is written to directly and may block.
    """

    def __init__(self, destination: int | TextIO) -> None:
        self.fd = -1
        self.pending = bytearray()
        self._is_broken = self._is_socket = self._is_shared = False
        self._stream = None if isinstance(destination, int) else destination
        if not isinstance(destination, int):
            return
        mode = os.fstat(destination).st_mode
        self._is_socket = stat.S_ISSOCK(mode)
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            # The flag for writes that never block belongs to all processes that share a descriptor,
            # so it must not be set on an inherited one; a pipe or terminal can be opened anew.
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
            try:
                self.fd = os.open(f"/proc/self/fd/{destination}", flags)
            except OSError:
                # For example the terminal of another user: then in portions that surely fit.
                self._is_shared = True
        if self.fd < 0:
            self.fd = os.dup(destination)

    @property
    def is_full(self) -> bool:
        """Whether more should not be added now."""
        return len(self.pending) >= PENDING_BYTES_MAX

    def add(self, data: bytes) -> None:
        """Append `data`; a destination that is gone loses it silently."""
        if not self._is_broken:
            self.pending += data

    def flush(self) -> int:
        """Write what the destination takes now; return how many bytes that was."""
        taken = 0
        try:
            while self.pending:
                count = self._write(self.pending)
                del self.pending[:count]
                taken += count
        except BlockingIOError:
            pass
        except (OSError, ValueError) as error:
            # Its reader has gone, or a disk is full: no reason to trouble the workers.
            _LOGGER.debug("the destination of a tee is gone: %s", error)
            self.pending.clear()
            self._is_broken = True
        return taken

    def close(self) -> None:
        """Give the copy of the descriptor back."""
        if self.fd >= 0:
            os.close(self.fd)

    def _write(self, data: bytearray) -> int:
        if self._stream is not None:
            self._stream.write(data.decode(errors="replace"))
            self._stream.flush()
            return len(data)
        if self._is_socket:
            connection = socket.socket(fileno=self.fd)
            try:
                return connection.send(data, socket.MSG_DONTWAIT)
            finally:
                connection.detach()
        if self._is_shared:
            poll = select.poll()
            poll.register(self.fd, select.POLLOUT)
            if not poll.poll(0):
                raise BlockingIOError
            data = data[: select.PIPE_BUF]
        return os.write(self.fd, data)


@dataclass(slots=True, eq=False)
class FollowedFile:
    """A source: a file's lines go to the first sink, those with a needle to the second."""

    pipe_fd: ClassVar[int] = -1

    fd: int
    sinks: tuple[Sink, ...]
    prefix: bytes
    needles: tuple[bytes, ...]
    turn: int
    wake: Callable[[], None]
    unwatch: Callable[[], None] | None = None
    """Undoes what tells of writes; None if nothing does."""
    cutter: LineCutter = field(default_factory=LineCutter)
    position: int = 0
    is_finished: bool = False
    end_at: int | None = None
    """Size of the file when it was finished; None if more may come."""
    is_ended: bool = False

    def finish(self) -> None:
        """Show the file to its end, also a last line without a line end; no wait, any thread."""
        if not self.is_finished:
            self.is_finished = True
            self.wake()

    def step(self) -> bool:
        """Pass one chunk on; return whether there may be more to do at once."""
        if self.is_finished and self.end_at is None:
            self._restart_if_cut()
            self.end_at = os.fstat(self.fd).st_size
        if self.end_at is not None and self.position >= self.end_at:
            self._emit(self.cutter.end())
            self.is_ended = True
            return False
        chunk = os.read(self.fd, CHUNK_BYTES)
        self.position += len(chunk)
        if chunk:
            self._emit(self.cutter.feed(chunk))
            return True
        return self._restart_if_cut()

    def close(self) -> None:
        """Give the descriptor back."""
        if self.unwatch is not None:
            self.unwatch()
        os.close(self.fd)

    def _restart_if_cut(self) -> bool:
        """Go back to the beginning of a file that was cut, as log rotation does."""
        size = os.fstat(self.fd).st_size
        if size >= self.position:
            return False
        self.position = os.lseek(self.fd, 0, os.SEEK_SET)
        self.end_at = None if self.end_at is None else size
        return True

    def _emit(self, block: bytes) -> None:
        self.sinks[0].add(prefixed(block, self.prefix))
        for sink in self.sinks[1:]:
            sink.add(prefixed(matching(block, self.needles), self.prefix))


class StderrPipe:
    """A source: one worker's standard error, opened by its ``path``, where its end is asked for.

    If ``screen``, where it is shown in the end, is a terminal, it is one, so that progress bars and
    colours stay; else a pipe at the path given. If nothing is taken there, it fills and the worker
    waits, as if it wrote there itself; nothing is lost or grows. Raises ``OSError`` if the system
    gives neither.
    """

    turn = 0

    def __init__(self, path: str, screen: int, wake: Callable[[], None]) -> None:
        self.sinks: tuple[Sink, ...] = ()
        self.is_ended = False
        self._wake = wake
        self._lock = threading.Lock()
        # All below is guarded by the lock.
        self._arrived, self._end = bytearray(), bytearray()
        self._screen = screen if os.isatty(screen) else -1
        # What is read first; then what only keeps it open, for it must not end with a writer.
        self._fds: tuple[int, ...] = ()
        self.path = path
        if self._screen >= 0:
            master, slave = self._fds = os.openpty()
            # Bytes pass unchanged here; what a line end means is up to the agent's terminal.
            tty.setraw(slave)
            os.set_blocking(master, False)
            self.path = os.ttyname(slave)
            self._copy_size()
        else:
            os.mkfifo(path, 0o600)
            try:
                # Open for writing too, or it would end whenever there is no worker.
                self._fds = (os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC),)
            finally:
                if not self._fds:
                    os.unlink(path)  # noqa: PTH108 - a text for the worker
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
        """Return the last lines that the worker, which has ended, wrote; from any thread."""
        with self._lock:
            self._drain()
            self._wake()
            return last_lines(bytes(self._end))

    def finish(self) -> None:
        """Take what is left of a worker that is gone, descendants included; from any thread."""
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
            self._wake()

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

    def _copy_size(self) -> None:
        with suppress(OSError):
            size = fcntl.ioctl(self._screen, termios.TIOCGWINSZ, bytes(struct.calcsize("4H")))
            fcntl.ioctl(self._fds[0], termios.TIOCSWINSZ, size)
