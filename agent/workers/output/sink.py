"""Shell. Writes to a destination that may be slow or gone, without ever waiting for it."""

import logging
import os
import select
import socket
import stat
from contextlib import suppress
from typing import TextIO

_LOGGER = logging.getLogger(__name__)

PENDING_BYTES_MAX = 1024 * 1024
"""Above this a sink is full; the rest is safe in its file."""


class Sink:
    """A destination and what it has not taken yet, ``pending``.

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
        # Opened anew, it never blocks. The flag for that must not be set on an inherited one: it
        # belongs to all processes that share it.
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
            with suppress(OSError):  # for example the terminal of another user
                self.fd = os.open(f"/proc/self/fd/{destination}", flags)
            self._is_shared = self.fd < 0
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
            with socket.socket(fileno=os.dup(self.fd)) as connection:
                return connection.send(data, socket.MSG_DONTWAIT)
        if self._is_shared:  # in portions that surely fit
            poll = select.poll()
            poll.register(self.fd, select.POLLOUT)
            if not poll.poll(0):
                raise BlockingIOError
            data = data[: select.PIPE_BUF]
        return os.write(self.fd, data)
