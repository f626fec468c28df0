"""Shell. The ends of a `Tail`: files and pipes it reads, destinations it writes to."""

import fcntl
import logging
import os
import select
import socket
import stat
import termios
import threading
import tty
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TextIO

from drumbeat.agent.workers.output.lines import (
    LAST_BYTES_MAX,
    LINE_BYTES_MAX,
    LineCutter,
    last_lines,
    matching,
    prefixed,
)
from drumbeat.agent.workers.output.ring import Piece, Place, Ring
from drumbeat.command.console import NO_ROOM
from drumbeat.command.live_line import device_of, line_at

_LOGGER = logging.getLogger(__name__)

CHUNK_BYTES = 256 * 1024  # bytes read from one file before the next file has its turn
PENDING_BYTES_MAX = (
    1024 * 1024
)  # of a full sink; the rest is safe in its file, or held up in its pipe
PIPE_CHUNK_BYTES = 64 * 1024
PIPE_BYTES = 1024 * 1024  # asked of the kernel, so that a worker need not wait for the thread
DRAIN_BYTES_MAX = 2 * PIPE_BYTES  # of what is left: all of it, unless a process goes on writing


class Sink:
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


@dataclass(slots=True, eq=False)
class FollowedFile:
    """A source of a `Tail`. Its lines go to the first sink, those with a needle to the second."""

    fd: int
    watch: int | None  # what tells of writes; None if nothing does
    sinks: tuple[Sink, ...]
    prefix: bytes
    needles: tuple[bytes, ...]
    turn: int
    wake: Callable[[], None]
    cutter: LineCutter = field(default_factory=LineCutter)
    position: int = 0
    is_finished: bool = False
    end_at: int | None = None  # size of the file when it was finished; None if more may come
    is_ended: bool = False
    wait_fds: tuple[int, ...] = ()

    def finish(self) -> None:
        """Show the file to its end, also a last line without a line end; no wait, any thread."""
        if not self.is_finished:
            self.is_finished = True
            self.wake()

    def step(self) -> bool:
        """Pass one chunk on; return whether there may be more to do at once."""
        if self.is_finished and self.end_at is None:
            self.end_at = os.fstat(self.fd).st_size
        is_shown = self.end_at is not None and self.position >= self.end_at
        if not is_shown and (chunk := os.read(self.fd, CHUNK_BYTES)):
            self.position += len(chunk)
            self._emit(self.cutter.feed(chunk))
            return True
        if os.fstat(self.fd).st_size < self.position:
            # It was cut, as log rotation does: back to its beginning.
            self.position, self.end_at = os.lseek(self.fd, 0, os.SEEK_SET), None
            return True
        if self.end_at is not None:
            self._emit(self.cutter.end())
            self.is_ended = True
        return False

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.fd)

    def _emit(self, block: bytes) -> None:
        self.sinks[0].pending += prefixed(block, self.prefix)
        for sink in self.sinks[1:]:
            sink.pending += prefixed(matching(block, self.needles), self.prefix)


class OutputPipe:
    """A stream that a worker opens by its ``path``, where the end of it is to be kept.

    If ``screen``, where it is shown in the end, is a terminal, it is one, so that progress bars and
    colours stay; else a pipe at the path given, which is shown in whole lines. If nothing is taken
    where it is shown, it fills and the worker waits, as if it wrote there itself. Without ``sinks``
    only its end is remembered.
    ``on_news`` is called when it grew. Any thread may call all but `step`. Raises ``OSError`` if
    the system gives neither.
    """

    turn = 0
    watch = 0  # none is needed

    def __init__(
        self, path: str, screen: int, sinks: tuple[Sink, ...], wake: Callable[[], None]
    ) -> None:
        self.path, self.sinks = path, sinks
        self.is_ended = False
        self._wake = wake
        self._lock = threading.Lock()
        # All below is guarded by the lock.
        self._arrived, self._begun = bytearray(), bytearray()
        self._is_left = False  # its worker is gone, so that no line is waited for
        self._ring = Ring()
        self.on_news: Callable[[], None] = lambda: None
        self._screen = screen if os.isatty(screen) else -1
        # What is read first; then what only keeps it open, for it must not end with a writer.
        self.wait_fds: tuple[int, ...]
        if self._screen >= 0:
            master, slave = self.wait_fds = os.openpty()
            # Bytes pass unchanged here; what a line end means is up to the agent's terminal.
            tty.setraw(slave)
            os.set_blocking(master, False)
            self.path = os.ttyname(slave)
            self._copy_size()
            return
        os.mkfifo(path, 0o600)
        try:
            # Open for writing too, or it would end whenever there is no worker.
            self.wait_fds = (os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC),)
        except OSError:
            os.unlink(path)  # noqa: PTH108 - a text for the worker
            raise
        with suppress(OSError):  # users have a limit for all their pipes
            fcntl.fcntl(self.wait_fds[0], fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def step(self) -> bool:
        """Pass on what has come; return whether there may be more to do at once."""
        with self._lock:
            chunk = bytes(self._arrived) or self._read()
            if self._screen >= 0 and chunk and not chunk.endswith(b"\n"):
                chunk += self._read()  # the kernel halves a line at the end of its buffer
            self._arrived.clear()
            self.is_ended = not self.wait_fds
            if chunk and self.wait_fds and self._screen >= 0:
                self._copy_size()  # for whatever it writes next
            is_more = bool(chunk)
            if self._screen < 0:
                chunk = self._whole_lines(chunk)
        for sink in self.sinks:
            sink.pending += chunk
        return is_more

    def _whole_lines(self, chunk: bytes) -> bytes:
        """Return what goes on now, and keep the beginning of a line that is not finished.

        Another stream may lead to the same place, and would stand within that line.
        """
        self._begun += chunk
        cut = max(self._begun.rfind(b"\n"), self._begun.rfind(b"\r")) + 1
        if self._is_left or len(self._begun) - cut > LINE_BYTES_MAX:
            cut = len(self._begun)
        chunk = bytes(self._begun[:cut])
        del self._begun[:cut]
        return chunk

    def last_lines(self) -> str:
        """Return the last lines that the worker, which has ended, wrote."""
        with self._lock:
            self._drain()
            return last_lines(bytes(self._ring.data[-LAST_BYTES_MAX:]))

    def take_rest(self) -> None:
        """Take in what a worker wrote that is gone."""
        with self._lock:
            self._drain()

    def end(self) -> int:
        """Return how many bytes the worker wrote so far."""
        with self._lock:
            return self._ring.end

    def tail(self, lines: int) -> Place:
        """Return where the last lines begin that are kept."""
        with self._lock:
            return self._ring.tail(lines)

    def read(self, place: Place, *, is_last: bool) -> Piece:
        """Return what is kept behind a place; ``is_last``: also a line that is not finished."""
        with self._lock:
            return self._ring.read(place, is_last=is_last)

    def finish(self) -> None:
        """Take what is left of a worker that is gone, descendants included."""
        with self._lock:
            if not self.wait_fds:
                return
            self._drain()
            for fd in self.wait_fds:
                os.close(fd)
            self.wait_fds = ()
            if self._screen < 0:
                with suppress(OSError):
                    os.unlink(self.path)  # noqa: PTH108

    close = finish

    def _read(self) -> bytes:
        try:
            chunk = os.read(self.wait_fds[0], PIPE_CHUNK_BYTES) if self.wait_fds else b""
        except OSError:  # above all BlockingIOError
            return b""
        if chunk:
            self._ring.add(chunk)
            self.on_news()
        return chunk

    def _drain(self) -> None:
        size, self._is_left = 0, True
        while size < DRAIN_BYTES_MAX and (chunk := self._read()):
            size += len(chunk)
            if self.sinks:
                self._arrived += chunk
        self._wake()

    def _copy_size(self) -> None:
        with suppress(termios.error):
            termios.tcsetwinsize(self.wait_fds[0], termios.tcgetwinsize(self._screen))
