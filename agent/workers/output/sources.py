"""Shell. The streams of workers that a `Tail` shows: followed files, and pipes."""

import fcntl
import os
import select
import termios
import threading
import tty
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from drumbeat.agent.workers.output.destination import Destination
from drumbeat.agent.workers.output.lines import LINE_BYTES_MAX, LineCutter, matching, prefixed
from drumbeat.agent.workers.output.ring import Ring

CHUNK_BYTES = 256 * 1024  # bytes read from one file before the next file has its turn
PIPE_CHUNK_BYTES = 64 * 1024
PIPE_BYTES = 1024 * 1024  # asked of the kernel, so that a worker need not wait for the thread
DRAIN_BYTES_MAX = 2 * PIPE_BYTES  # of what is left: all of it, unless a process goes on writing


@dataclass(slots=True, eq=False)
class FollowedFile:
    """A file whose lines go to the first destination, those with a needle to the second, too."""

    fd: int
    watch: int | None  # the number of its watch; None if the system has none left
    destinations: tuple[Destination, ...]
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
    on_chunk: Callable[[bytes], None] | None = None  # takes what comes, in place of destinations

    def finish(self) -> None:
        """Show the file to its end, also a last line without a line end; no wait, any thread."""
        if not self.is_finished:
            self.is_finished = True
            self.wake()

    drain = finish  # the file has all that its worker wrote

    def step(self) -> bool:
        """Pass one chunk on; return whether there may be more to do at once."""
        if self.is_finished and self.end_at is None:
            self.end_at = os.fstat(self.fd).st_size
        is_shown = self.end_at is not None and self.position >= self.end_at
        if not is_shown and (chunk := os.read(self.fd, CHUNK_BYTES)):
            self.position += len(chunk)
            if self.on_chunk is not None:
                self.on_chunk(chunk)
            else:
                self._emit(self.cutter.feed(chunk))
            return True
        if os.fstat(self.fd).st_size < self.position:
            # It was cut, as log rotation does: back to its beginning.
            self.position, self.end_at = os.lseek(self.fd, 0, os.SEEK_SET), None
            return True
        if self.end_at is not None:
            if self.on_chunk is None:
                self._emit(self.cutter.end())
            self.is_ended = True
        return False

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.fd)

    def _emit(self, block: bytes) -> None:
        self.destinations[0].pending += prefixed(block, self.prefix)
        for destination in self.destinations[1:]:
            destination.pending += prefixed(matching(block, self.needles), self.prefix)


class OutputPipe:
    """A stream that a worker opens by its ``path``, and whose end is ``kept``.

    If ``screen``, where it is shown in the end, is a terminal, it is one, so that progress bars and
    colours stay; else a pipe at the path given, which is shown in whole lines. If nothing is taken
    where it is shown, it fills and the worker waits, as if it wrote there itself. Without
    ``destinations`` only its end is kept. ``on_news`` is called when it grew, ``on_chunk`` with the
    bytes. Any thread may call all but `step`. Raises ``OSError`` if the system gives neither.
    """

    turn = 0
    watch = 0  # none is needed

    def __init__(
        self,
        path: str,
        screen: int,
        destinations: tuple[Destination, ...],
        wake: Callable[[], None],
    ) -> None:
        self.path, self.destinations = path, destinations
        self.kept = Ring()
        self.is_ended = False
        self._wake = wake
        self._lock = threading.Lock()
        # All below is guarded by the lock.
        self._arrived, self._begun = bytearray(), bytearray()
        self._is_drained = False  # its worker is gone, so that no line is waited for
        self.on_news: Callable[[], None] = lambda: None
        self.on_chunk: Callable[[bytes], None] | None = None
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

    def has_unread(self) -> bool:
        """Return whether bytes wait to be read, e.g. because nothing is taken where it is shown."""
        poll = select.poll()
        with self._lock:
            for fd in self.wait_fds[:1]:
                poll.register(fd, select.POLLIN)
            return bool(poll.poll(0))

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
        for destination in self.destinations:
            destination.pending += chunk
        return is_more

    def _whole_lines(self, chunk: bytes) -> bytes:
        """Return what goes on now, and keep the beginning of a line that is not finished.

        Another stream may lead to the same place, and would stand within that line.
        """
        self._begun += chunk
        cut = max(self._begun.rfind(b"\n"), self._begun.rfind(b"\r")) + 1
        if self._is_drained or len(self._begun) - cut > LINE_BYTES_MAX:
            cut = len(self._begun)
        chunk = bytes(self._begun[:cut])
        del self._begun[:cut]
        return chunk

    def drain(self) -> None:
        """Take in what a worker wrote that is gone."""
        with self._lock:
            self._drain()

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
            self.kept.add(chunk)
            self.on_news()
            if self.on_chunk is not None:
                self.on_chunk(chunk)
        return chunk

    def _drain(self) -> None:
        size, self._is_drained = 0, True
        while size < DRAIN_BYTES_MAX and (chunk := self._read()):
            size += len(chunk)
            if self.destinations:
                self._arrived += chunk
        self._wake()

    def _copy_size(self) -> None:
        with suppress(termios.error):
            termios.tcsetwinsize(self.wait_fds[0], termios.tcgetwinsize(self._screen))
