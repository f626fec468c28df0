"""Shell. Writes to a destination that may be slow or gone, without ever waiting for it."""

from __future__ import annotations

import logging
import os
import select
import socket
import stat
from collections import deque
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable

_LOGGER = logging.getLogger(__name__)

PENDING_BYTES_MAX = 1024 * 1024
"""Above this a sink is full; the rest is safe in its file."""


class Sink:
    """A destination and what it has not taken yet.

    Of a descriptor a copy is kept until `close`. A text stream without one, as notebooks have, is
    written to directly and may block. ``users``, the sources that lead here, are counted by their
    owner.
    """

    def __init__(self, destination: int | TextIO) -> None:
        self._fd = -1
        self._queue: deque[memoryview] = deque()
        self.pending_bytes = 0
        self._is_broken = False
        self.users = 0
        self.is_closed = False
        if isinstance(destination, int):
            self._fd, self._write = _open_destination(destination)
        else:
            self._write = _text_writer(destination)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is pending."""
        return not self._queue

    @property
    def is_full(self) -> bool:
        """More should not be added now."""
        return self.pending_bytes >= PENDING_BYTES_MAX

    def fileno(self) -> int:
        """Return the descriptor that gets writable when the destination takes more."""
        return self._fd

    def add(self, data: bytes) -> None:
        """Append `data`; a destination that is gone loses it silently."""
        if data and not self._is_broken:
            self._queue.append(memoryview(data))
            self.pending_bytes += len(data)

    def flush(self) -> int:
        """Write what the destination takes now; return how many bytes that was."""
        taken = 0
        try:
            while self._queue:
                count = self._write(self._queue[0])
                taken += count
                if count == len(self._queue[0]):
                    self._queue.popleft()
                else:
                    self._queue[0] = self._queue[0][count:]
        except BlockingIOError:
            pass
        except (OSError, ValueError) as error:
            # Its reader has gone, or a disk is full: no reason to trouble the workers.
            _LOGGER.debug("the destination of a tee is gone: %s", error)
            self.discard()
            self._is_broken = True
        self.pending_bytes = max(0, self.pending_bytes - taken)
        return taken

    def discard(self) -> None:
        """Forget what is pending."""
        self._queue.clear()
        self.pending_bytes = 0

    def close(self) -> None:
        """Give the copy of the descriptor back."""
        self.is_closed = True
        if self._fd >= 0:
            os.close(self._fd)


def identity(destination: int | TextIO) -> tuple[int, ...]:
    """Return what two descriptors have in common that lead to the same place; may raise OSError."""
    if not isinstance(destination, int):
        return (id(destination),)
    status = os.fstat(destination)
    return (status.st_dev, status.st_ino)


def _open_destination(fd: int) -> tuple[int, Callable[[memoryview], int]]:
    """Return a descriptor of our own and a way to write to it without waiting.

    The flag that makes a descriptor non-blocking belongs to all processes that share it, so it
    must not be set on an inherited one. A pipe or terminal can be opened anew instead.
    """
    mode = os.fstat(fd).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        try:
            own = os.open(f"/proc/self/fd/{fd}", flags)
        except OSError:
            # For example the terminal of another user: then in portions that surely fit.
            own = os.dup(fd)
            return own, lambda data: _write_portion(own, data)
        return own, lambda data: os.write(own, data)
    own = os.dup(fd)
    if stat.S_ISSOCK(mode):
        return own, lambda data: _send(own, data)
    return own, lambda data: os.write(own, data)


def _write_portion(fd: int, data: memoryview) -> int:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    if not poll.poll(0):
        raise BlockingIOError
    return os.write(fd, data[: select.PIPE_BUF])


def _send(fd: int, data: memoryview) -> int:
    connection = socket.socket(fileno=fd)
    try:
        return connection.send(data, socket.MSG_DONTWAIT)
    finally:
        connection.detach()


def _text_writer(stream: TextIO) -> Callable[[memoryview], int]:
    def write(data: memoryview) -> int:
        stream.write(bytes(data).decode(errors="replace"))
        stream.flush()
        return len(data)

    return write
