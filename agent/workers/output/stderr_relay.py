"""Shell. Passes workers' standard error on, byte by byte, and remembers the end of it.

A worker writes to a pipe of its own, or to a terminal of its own if the agent has one, so that
progress bars and colours stay. One thread passes the bytes on. If the destination takes nothing,
the pipe fills and the worker waits, as if it wrote there itself; nothing is lost or grows.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import termios
import threading
import time
import tty
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent.workers.output.last_lines import BYTES_MAX, last_lines
from agent.workers.output.sink import Sink

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CHUNK_BYTES = 64 * 1024
"""Read from one worker before the next has its turn."""

PIPE_BYTES = 1024 * 1024
"""Asked of the kernel for each pipe, so that a worker need not wait for the thread."""

DRAIN_BYTES_MAX = 2 * PIPE_BYTES
"""Most that is read at once of what is left: all of it, unless a process goes on writing."""


@dataclass(slots=True)
class _Channel:
    """What one worker writes to."""

    path: str
    fds: tuple[int, ...]
    """What is read first; then what only keeps it open, for it must not end with a writer."""
    is_shown: bool
    is_terminal: bool
    end: bytearray = field(default_factory=bytearray)

    def read(self) -> bytes:
        """Return what is there, at most one chunk; nothing if there is nothing."""
        try:
            chunk = os.read(self.fds[0], CHUNK_BYTES)
        except OSError:  # above all BlockingIOError
            return b""
        self.end += chunk
        del self.end[:-BYTES_MAX]
        return chunk


class StderrRelay:
    """Passes the standard error of the workers of one round after another on to a descriptor.

    Used by one thread; another one passes on, from the first worker to `close`. ``folder`` returns
    a private folder for pipes. Raises ``OSError`` if there is no such descriptor.
    """

    def __init__(self, folder: Callable[[], Path], destination: int) -> None:
        self._folder = folder
        self._destination = destination
        self._is_terminal = os.isatty(destination)
        self._sink = Sink(destination)
        self._wakeup_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        # All below is guarded by the lock; the sink belongs to the thread.
        self._channels: dict[int, _Channel] = {}
        self._arrived: deque[bytes] = deque()
        self._stall_s: float | None = None

    def add(self, local_rank: int, *, is_shown: bool) -> str:
        """Return the path that a worker of the new round is to have as its standard error.

        If it is not shown, only its end is remembered. Raises ``OSError`` if the system gives
        neither pipe nor terminal.
        """
        open_channel = self._open_terminal if self._is_terminal else self._open_pipe
        channel = open_channel(local_rank, is_shown)
        with self._lock:
            assert local_rank not in self._channels, "the old round was not ended"
            self._channels[local_rank] = channel
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="stderr", daemon=True)
            self._thread.start()
        self._wake()
        return channel.path

    def last_lines(self, local_rank: int) -> str:
        """Return the last lines that a worker which has ended wrote."""
        with self._lock:
            channel = self._channels.get(local_rank)
            if channel is None:
                return ""
            self._drain(channel)
            self._wake()
            return last_lines(bytes(channel.end))

    def end_round(self) -> None:
        """Take what is left of workers that are all gone, descendants included."""
        with self._lock:
            for channel in self._channels.values():
                self._drain(channel)
                for fd in channel.fds:
                    os.close(fd)
                if not channel.is_terminal:
                    with suppress(OSError):
                        os.unlink(channel.path)  # noqa: PTH108 - a text for the worker
            self._channels.clear()
            self._wake()

    def close(self, stall_s: float) -> None:
        """End the round and pass on what is left, until the destination takes nothing for long."""
        self.end_round()
        with self._lock:
            self._stall_s = stall_s
            self._wake()
        if self._thread is not None:
            self._thread.join()
        self._sink.close()
        os.close(self._wakeup_fd)

    def _open_pipe(self, local_rank: int, is_shown: bool) -> _Channel:
        path = str(self._folder() / f"stderr_{local_rank}")
        os.mkfifo(path, 0o600)
        fd = -1
        try:
            # Open for writing too, or it would end whenever there is no worker.
            fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        finally:
            if fd < 0:
                os.unlink(path)  # noqa: PTH108
        with suppress(OSError):  # users have a limit for all their pipes
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        return _Channel(path, (fd,), is_shown, is_terminal=False)

    def _open_terminal(self, _local_rank: int, is_shown: bool) -> _Channel:
        master, slave = os.openpty()
        # Bytes pass unchanged here; what a line end means is up to the agent's terminal.
        tty.setraw(slave)
        os.set_blocking(master, False)
        channel = _Channel(os.ttyname(slave), (master, slave), is_shown, is_terminal=True)
        self._copy_size(channel)
        return channel

    def _copy_size(self, channel: _Channel) -> None:
        with suppress(OSError):
            size = fcntl.ioctl(self._destination, termios.TIOCGWINSZ, bytes(struct.calcsize("4H")))
            fcntl.ioctl(channel.fds[0], termios.TIOCSWINSZ, size)

    def _drain(self, channel: _Channel) -> None:
        size = 0
        while size < DRAIN_BYTES_MAX and (chunk := channel.read()):
            size += len(chunk)
            if channel.is_shown:
                self._arrived.append(chunk)

    def _wake(self) -> None:
        os.eventfd_write(self._wakeup_fd, 1)

    def _run(self) -> None:
        progress_at = time.monotonic()
        while True:
            with self._lock:
                is_more = self._read_all()
                arrived = tuple(self._arrived)
                self._arrived.clear()
                stall_s, channels = self._stall_s, tuple(self._channels.values())
            for chunk in arrived:
                self._sink.add(chunk)
            # Without the lock: a destination on a slow disk must not hold up the other thread.
            if self._sink.flush() or stall_s is None:
                progress_at = time.monotonic()
            is_done = self._sink.is_idle and not is_more
            left_s = None if stall_s is None else progress_at + stall_s - time.monotonic()
            if left_s is not None and (is_done or left_s <= 0):
                return
            if not is_more:
                self._wait(channels, left_s)

    def _read_all(self) -> bool:
        """Read a chunk of each worker that is not held up; return whether there was any."""
        is_any = False
        for channel in self._channels.values():
            if channel.is_shown and self._sink.is_full:
                continue
            chunk = channel.read()
            is_any = is_any or bool(chunk)
            if chunk and channel.is_terminal:
                self._copy_size(channel)  # for whatever it writes next
            if channel.is_shown and chunk:
                self._arrived.append(chunk)
        return is_any

    def _wait(self, channels: tuple[_Channel, ...], timeout_s: float | None) -> None:
        """Sleep until a worker has written, the destination takes more, or a call has come."""
        poll = select.poll()
        poll.register(self._wakeup_fd, select.POLLIN)
        for channel in channels:
            if not (channel.is_shown and self._sink.is_full):
                poll.register(channel.fds[0], select.POLLIN)
        if not self._sink.is_idle:
            poll.register(self._sink.fileno(), select.POLLOUT)
        poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000)
        with suppress(BlockingIOError):
            os.eventfd_read(self._wakeup_fd)
