"""Shell. The tee: follows the files that workers write, and shows their lines elsewhere.

A worker writes to its file only, so no reader can make it wait; the file is the buffer. One
thread follows all files. The kernel tells it of every write.
"""

from __future__ import annotations

import logging
import os
import selectors
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from agent.workers.output.inotify import Inotify
from agent.workers.output.lines import LineCutter, matching, prefixed
from agent.workers.output.sink import Sink, identity
from worker_sdk.interpreter.signal_wakeup import wait_readable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LOGGER = logging.getLogger(__name__)

CHUNK_BYTES = 256 * 1024
"""Bytes read from one file before the next file has its turn."""

STALL_S = 30.0
"""Default of how long `Tail.close` waits for a destination that takes nothing at all."""

LOOK_AGAIN_S = 0.1
"""How often the files are looked at on a system that has no inotify watch left for us."""


@dataclass(slots=True)
class _Source:
    """One followed file."""

    path: str
    fd: int
    watch: int | None
    sink: Sink
    prefix: bytes
    needles: tuple[bytes, ...]
    filtered_sink: Sink | None
    turn: int
    cutter: LineCutter = field(default_factory=LineCutter)
    position: int = 0
    end_at: int | None = None
    """Size of the file when it was finished; None if more may come."""
    is_ended: bool = False

    def finish(self) -> None:
        """Have it end with what is in the file now."""
        if self.end_at is None:
            self._restart_if_cut()
            self.end_at = os.fstat(self.fd).st_size

    @property
    def sinks(self) -> tuple[Sink, ...]:
        return (self.sink,) if self.filtered_sink is None else (self.sink, self.filtered_sink)

    def step(self) -> bool:
        """Pass one chunk on; return whether there may be more to do at once."""
        if any(sink.is_full for sink in self.sinks):
            return False
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

    def _restart_if_cut(self) -> bool:
        """Go back to the beginning of a file that was cut, as log rotation does."""
        size = os.fstat(self.fd).st_size
        if size >= self.position:
            return False
        self.position = os.lseek(self.fd, 0, os.SEEK_SET)
        self.end_at = None if self.end_at is None else size
        return True

    def _emit(self, block: bytes) -> None:
        self.sink.add(prefixed(block, self.prefix))
        if self.filtered_sink is not None:
            self.filtered_sink.add(prefixed(matching(block, self.needles), self.prefix))


class Tail:
    """Shows what is appended to files, line by line and in order, until they are finished.

    Lines of different files are mixed, but never within a line. Neither the caller nor the writers
    wait for a destination that is slow or closed. Any thread may call; the one that follows starts
    with the first file and ends with `close`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._stall_s = STALL_S
        self._lost_bytes = 0
        self._progress_at = 0.0
        self._sources: dict[int, _Source] = {}
        self._sinks: dict[tuple[int, ...], Sink] = {}
        self._selector = selectors.DefaultSelector()
        self._wakeup_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._wakeup_fd, selectors.EVENT_READ)
        # Stays readable once the thread has ended.
        self._done_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._commands: deque[Callable[[], None]] = deque()
        self._inotify: Inotify | None = None
        try:
            self._inotify = Inotify()
        except OSError as error:
            _LOGGER.warning("%s; looking at the files every %s s instead", error, LOOK_AGAIN_S)
        else:
            self._selector.register(self._inotify, selectors.EVENT_READ)

    def add(
        self,
        source_path: str,
        destination: int | TextIO,
        *,
        prefix: bytes = b"",
        filters: Sequence[str] = (),
        filtered: int | TextIO | None = None,
        turn: int = 0,
    ) -> None:
        """Show the lines of a file, from its beginning, at `destination`.

        Raises ``OSError`` if the file cannot be read, or there is no such destination.

        Args:
            source_path: Made if missing. The worker may still empty it.
            destination: Descriptor, or a text stream that has none; may be closed afterwards.
            prefix: Written before each line.
            filters: Lines that contain one of them are also written to `filtered`, if given.
            filtered: Destination of such lines.
            turn: A file waits until those of lower turns that lead to the same place are shown.
        """
        fd = os.open(source_path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            with self._lock:
                assert not self._is_closing, "added to a tail that is closed"
                source = _Source(
                    path=source_path,
                    fd=fd,
                    watch=self._watch(fd),
                    sink=self._sink(destination),
                    prefix=prefix,
                    needles=tuple(needle.encode() for needle in filters),
                    filtered_sink=None if filtered is None else self._sink(filtered),
                    turn=turn,
                )
                self._commands.append(lambda: self._sources.update({fd: source}))
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="tail", daemon=True)
                    self._thread.start()
                self._wake()
        except BaseException:
            os.close(fd)
            raise

    def finish(self, source_path: str) -> None:
        """Show a file to its end, also a last line without a line end, and close it; no wait."""
        with self._lock:
            if not self._is_closing:
                self._commands.append(lambda: self._finish(source_path))
                self._wake()

    def close(self, stall_s: float = STALL_S) -> bool:
        """Finish all files, show them to their end, and give everything back.

        Blocks until the destinations have taken all or, for ``stall_s``, nothing; returns whether
        they took all. Harmless if repeated.
        """
        with self._lock:
            is_first = not self._is_closing
            self._is_closing = True
            self._stall_s = stall_s
            self._progress_at = time.monotonic()
            if is_first:
                self._wake()
        if self._thread is not None:
            while self._thread.is_alive() and not wait_readable(self._done_fd, None):
                pass  # after a signal; see `hurry`
            self._thread.join()
        if is_first:
            self._release()
        return not self._lost_bytes

    def hurry(self) -> None:
        """Let a `close` that is under way give up what is not taken at once."""
        if self._thread is not None and self._thread.is_alive():
            self._stall_s = 0.0
            self._wake()

    def _sink(self, destination: int | TextIO) -> Sink:
        key = identity(destination)
        if key not in self._sinks:
            self._sinks[key] = Sink(destination)
        self._sinks[key].users += 1
        return self._sinks[key]

    def _watch(self, fd: int) -> int | None:
        if self._inotify is None:
            return None
        try:
            return self._inotify.watch(fd)
        except OSError as error:
            _LOGGER.warning("%s; looking at the file every %s s instead", error, LOOK_AGAIN_S)
            return None

    def _wake(self) -> None:
        os.eventfd_write(self._wakeup_fd, 1)

    def _finish(self, path: str) -> None:
        for source in self._sources.values():
            if source.path == path:
                source.finish()

    def _run(self) -> None:
        try:
            self._follow()
        finally:
            os.eventfd_write(self._done_fd, 1)

    def _follow(self) -> None:
        while True:
            with self._lock:
                is_closing, sinks = self._is_closing, tuple(self._sinks.values())
            while self._commands:
                self._commands.popleft()()
            if is_closing:
                for source in self._sources.values():
                    source.finish()
            # Read first, then write: what comes of one round of chunks goes out together.
            is_more = sum([source.step() for source in self._in_turn()]) > 0
            is_held_up = any(sink.is_full for sink in sinks)
            if sum(sink.flush() for sink in sinks):
                self._progress_at = time.monotonic()
                is_more = is_more or is_held_up
            self._drop_ended()
            sinks = tuple(sink for sink in sinks if not sink.is_closed)
            if is_closing and not self._sources and all(sink.is_idle for sink in sinks):
                return
            if is_closing and time.monotonic() >= self._progress_at + self._stall_s and not is_more:
                self._give_up(sinks)
                return
            self._wait(sinks, 0.0 if is_more else self._timeout_s(is_closing=is_closing))

    def _in_turn(self) -> list[_Source]:
        """Return the files that wait for no other."""
        first: dict[int, int] = {}
        for source in self._sources.values():
            for sink in source.sinks:
                first[id(sink)] = min(source.turn, first.get(id(sink), source.turn))
        return [
            source
            for source in self._sources.values()
            if all(source.turn == first[id(sink)] for sink in source.sinks)
        ]

    def _timeout_s(self, *, is_closing: bool) -> float | None:
        if is_closing:
            return max(0.0, self._progress_at + self._stall_s - time.monotonic())
        is_watched = all(source.watch is not None for source in self._sources.values())
        return None if is_watched else LOOK_AGAIN_S

    def _wait(self, sinks: Sequence[Sink], timeout_s: float | None) -> None:
        """Sleep until a file has grown, a destination takes more, or a command has come."""
        stalled = [sink for sink in sinks if not sink.is_idle]
        for sink in stalled:
            self._selector.register(sink, selectors.EVENT_WRITE)
        ready = {key.fileobj for key, _ in self._selector.select(timeout_s)}
        for sink in stalled:
            self._selector.unregister(sink)
        if self._wakeup_fd in ready:
            os.eventfd_read(self._wakeup_fd)
        if self._inotify is not None and self._inotify in ready:
            # Before the files are read, so that no write goes unnoticed.
            self._inotify.drain()

    def _drop_ended(self) -> None:
        for source in [source for source in self._sources.values() if source.is_ended]:
            self._drop(source)
        with self._lock:
            for key, sink in tuple(self._sinks.items()):
                if not sink.users and sink.is_idle:
                    self._sinks.pop(key).close()

    def _drop(self, source: _Source) -> None:
        del self._sources[source.fd]
        with self._lock:
            if self._inotify is not None and source.watch is not None:
                self._inotify.unwatch(source.watch)
            for sink in source.sinks:
                sink.users -= 1
        os.close(source.fd)

    def _give_up(self, sinks: Sequence[Sink]) -> None:
        for sink in sinks:
            self._lost_bytes += sink.pending_bytes
            sink.discard()
        for source in tuple(self._sources.values()):
            position = os.lseek(source.fd, 0, os.SEEK_CUR)
            self._lost_bytes += os.fstat(source.fd).st_size - position + source.cutter.held_bytes
            self._drop(source)
        _LOGGER.warning(
            "the console takes no output: %d bytes are only in the log files", self._lost_bytes
        )

    def _release(self) -> None:
        for sink in self._sinks.values():
            sink.close()
        if self._inotify is not None:
            self._inotify.close()
        self._selector.close()
        os.close(self._wakeup_fd)
        os.close(self._done_fd)
