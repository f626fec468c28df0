"""Shell. Writes to a destination that may be slow or gone, without ever waiting for it."""

import logging
import os
import select
import socket
import stat
from typing import TextIO

_LOGGER = logging.getLogger(__name__)

PENDING_BYTES_MAX = 1024 * 1024
"""Above this a sink is full; the rest is safe in its file."""


class Sink:
    """A destination and what it has not taken yet.

    Of a descriptor a copy is kept until `close`, at ``fd``. A text stream without one, as notebooks
    have, is written to directly and may block.
    """

    def __init__(self, destination: int | TextIO) -> None:
        self.fd = -1
        self._pending = bytearray()
        self._is_broken = self._is_socket = self._is_shared = False
        self._stream = None if isinstance(destination, int) else destination
        if isinstance(destination, int):
            self._open(destination)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is pending."""
        return not self._pending

    @property
    def is_full(self) -> bool:
        """Whether more should not be added now."""
        return len(self._pending) >= PENDING_BYTES_MAX

    def add(self, data: bytes) -> None:
        """Append `data`; a destination that is gone loses it silently."""
        if not self._is_broken:
            self._pending += data

    def flush(self) -> int:
        """Write what the destination takes now; return how many bytes that was."""
        taken = 0
        try:
            while self._pending:
                count = self._write(self._pending)
                del self._pending[:count]
                taken += count
        except BlockingIOError:
            pass
        except (OSError, ValueError) as error:
            # Its reader has gone, or a disk is full: no reason to trouble the workers.
            _LOGGER.debug("the destination of a tee is gone: %s", error)
            self._pending.clear()
            self._is_broken = True
        return taken

    def close(self) -> None:
        """Give the copy of the descriptor back."""
        if self.fd >= 0:
            os.close(self.fd)

    def _open(self, fd: int) -> None:
        """Open a descriptor of our own, if possible one that never blocks.

        The flag for that belongs to all processes that share a descriptor, so it must not be set
        on an inherited one. A pipe or terminal can be opened anew instead.
        """
        mode = os.fstat(fd).st_mode
        self._is_socket = stat.S_ISSOCK(mode)
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
            try:
                self.fd = os.open(f"/proc/self/fd/{fd}", flags)
            except OSError:
                # For example the terminal of another user: then in portions that surely fit.
                self._is_shared = True
        if self.fd < 0:
            self.fd = os.dup(fd)

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
