"""Shell. A console or file that shows the output of workers, and its backlog."""

import logging
import os
import select
import socket
import stat
from contextlib import suppress
from typing import TextIO

from drumbeat.command.console import NO_ROOM
from drumbeat.command.live_line import device_of, line_at

_LOGGER = logging.getLogger(__name__)

PENDING_BYTES_MAX = 1024 * 1024  # of a full destination; more waits in a file or in a pipe


class Destination:
    """A destination that may be slow or gone, and what it has not taken yet: add to ``pending``.

    Of a descriptor a copy is kept until `close`, at ``fd``; nothing waits for it. A text stream
    without one, as notebooks have, is written to directly and may block. On a full disk
    ``pending`` is kept up to `PENDING_BYTES_MAX`. What is lost above that is counted; the number
    is written once there is room again.
    """

    def __init__(self, destination: int | TextIO) -> None:
        self.fd = -1
        self.pending = bytearray()
        self.is_out_of_room = False  # the disk was full at the latest attempt
        # Since there was no room for what is kept; whatever comes behind that is lost, too.
        self._lost_bytes = self._kept_bytes = 0
        self._is_broken = self._is_socket = self._is_shared = False
        self._stream = None if isinstance(destination, int) else destination
        self._device = device_of(destination) if isinstance(destination, int) else 0
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

    def flush(self) -> int:
        """Write what is taken now; return how many bytes fewer wait: all, if the reader is gone."""
        if self.is_out_of_room:
            self._cut()
        before = len(self.pending)
        try:
            while self.pending and not self._is_broken:
                del self.pending[: self._write(self.pending)]
                self._note_room()
        except BlockingIOError:
            pass
        except (OSError, ValueError) as error:
            # Its reader has gone, or a disk is full: no reason to trouble the workers.
            self.is_out_of_room = isinstance(error, OSError) and error.errno in NO_ROOM
            self._is_broken = not self.is_out_of_room
            if self._is_broken:
                _LOGGER.debug("the destination of a tee is gone: %s", error)
        if self._is_broken:
            self.pending.clear()
        return max(0, before - len(self.pending))

    def close(self) -> None:
        """Give the copy of the descriptor back."""
        if self.fd >= 0:
            os.close(self.fd)

    def _cut(self) -> None:
        """Drop what is too much to keep: from the end of a line on, all that comes."""
        if not self._lost_bytes and len(self.pending) < PENDING_BYTES_MAX:
            return
        if not self._lost_bytes:
            last = PENDING_BYTES_MAX - 1
            self._kept_bytes = self.pending.rfind(b"\n", 0, last) + 1 or last
        self._lost_bytes += len(self.pending) - self._kept_bytes
        del self.pending[self._kept_bytes :]

    def _note_room(self) -> None:
        self.is_out_of_room = False
        if self._lost_bytes:
            self.pending += f"({self._lost_bytes:,} bytes lost: the disk was full)\n".encode()
            self._lost_bytes = 0

    def _write(self, data: bytearray) -> int:
        if self._stream is not None:
            self._stream.write(data.decode(errors="replace"))
            self._stream.flush()
            return len(data)
        if self._device and (line := line_at(self._device)) is not None:
            return line.write(data)
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
