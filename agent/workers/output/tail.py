"""Shell. Shows elsewhere what workers write: lines of their files (the tee), bytes of their pipes.

A worker that writes to a file waits for no reader: the file is the buffer.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO, TypeAlias

from drumbeat.agent.workers.output.streams import FollowedFile, OutputPipe, Sink
from drumbeat.command.console import ROOM_RETRY_S

_LOGGER = logging.getLogger(__name__)

STALL_S = 30.0  # how long `Tail.close` waits for a destination that takes nothing, unless told
ROOM_STALL_S = 1.0  # the same for one on a full disk
LOOK_AGAIN_S = 0.1  # how often files are looked at if the system has no inotify watch left for us

IN_MODIFY = 0x2
_NOTICES_BYTES = 64 * 1024

_Source: TypeAlias = FollowedFile | OutputPipe


class Tail:
    """Shows what comes from files and pipes, in order, until they are finished.

    Lines of different files are mixed, but never within a line. Neither the caller nor writers of
    files wait for a destination that is slow or closed. Any thread may call; the one that follows
    starts with the first source and ends with `close`. Holds nothing of the system before.
    """

    def __init__(self, name: str = "tail", stall_s: float = STALL_S) -> None:
        self._name, self.stall_s = name, stall_s
        self._thread: threading.Thread | None = None
        self._progress_at = 0.0
        self._wakeup_fd = -1
        self._lock = threading.Lock()
        # All below is guarded by the lock; what sinks hold belongs to the thread.
        self._is_closing = False
        self._sources: list[_Source] = []
        self._sinks: dict[object, Sink] = {}
        self._inotify_fd = -1

    def add(
        self,
        source_path: str,
        destination: int | TextIO,
        *,
        prefix: bytes = b"",
        filters: Sequence[str] = (),
        filtered: int | TextIO | None = None,
        turn: int = 0,
    ) -> FollowedFile:
        """Show the lines of a file, from its beginning, at `destination`, each behind `prefix`.

        The file is made if missing, and may be emptied meanwhile. Lines that contain one of
        `filters` are also written to `filtered`, if given. A destination is a descriptor, or a
        text stream that has none; it may be closed afterwards. A file waits until those of lower
        turns, added before it, that lead to the same place are shown. Raises ``OSError`` if the
        file cannot be read, or there is no such destination.
        """
        needles = tuple(needle.encode() for needle in filters)
        with self._lock:
            sinks = tuple(self._sink(to) for to in (destination, filtered) if to is not None)
            fd = os.open(source_path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
            watch = self._watch(fd)
            source = FollowedFile(fd, watch, sinks, prefix, needles, turn, self._wake)
            self._begin(source)
        return source

    def add_pipe(self, path: str, destination: int, *, is_shown: bool) -> OutputPipe:
        """Return a worker's stream, shown at `destination` or nowhere; see `OutputPipe`."""
        with self._lock:
            sinks = (self._sink(destination),) if is_shown else ()
            pipe = OutputPipe(path, destination, sinks, self._wake)
            self._begin(pipe)
        return pipe

    def close(self) -> None:
        """Finish all sources, show them to their end, and give everything back; call it once.

        Blocks until the destinations have taken all or, for ``stall_s``, nothing. Not for the main
        thread, whose handlers of signals would wait as well.
        """
        with self._lock:
            self._is_closing = True
            self._progress_at = time.monotonic()
            self._wake()
        if self._thread is not None:
            self._thread.join()
        for sink in self._sinks.values():
            sink.close()
        for fd in (self._wakeup_fd, self._inotify_fd):
            if fd >= 0:
                os.close(fd)
        self._wakeup_fd = -1

    def hurry(self) -> None:
        """Let `close`, also one that is under way, give up what is not taken at once."""
        self.stall_s = 0.0
        if self._thread is not None and self._thread.is_alive():
            self._wake()

    def _sink(self, destination: int | TextIO) -> Sink:
        # Two descriptors may lead to the same place.
        key = os.fstat(destination)[1:3] if isinstance(destination, int) else id(destination)
        if key not in self._sinks:
            self._sinks[key] = Sink(destination)
        return self._sinks[key]

    def _watch(self, fd: int) -> int | None:
        try:
            if self._inotify_fd < 0:
                self._inotify_fd = inotify("init1", os.O_NONBLOCK | os.O_CLOEXEC)
            # By this path it is the very file that is open, whatever has its name meanwhile.
            path = f"/proc/self/fd/{fd}".encode()
            return inotify("add_watch", self._inotify_fd, path, IN_MODIFY)
        except OSError as error:
            _LOGGER.warning("%s; looking at the file every %s s instead", error, LOOK_AGAIN_S)
            return None

    def _begin(self, source: _Source) -> None:
        assert not self._is_closing, "added to a tail that is closed"
        self._sources.append(source)
        if self._thread is None:
            self._wakeup_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._wake()

    def _wake(self) -> None:
        if self._wakeup_fd >= 0:
            os.eventfd_write(self._wakeup_fd, 1)

    # What follows runs in the thread.

    def _run(self) -> None:
        while True:
            with self._lock:
                is_closing, sources = self._is_closing, tuple(self._sources)
                sinks = tuple(self._sinks.values())
            if is_closing:
                for source in sources:
                    source.finish()
            # Read first, then write: what comes of one round of chunks goes out together.
            is_more = sum([source.step() for source in _ready(sources)]) > 0
            is_held_up = any(sink.is_full for sink in sinks)
            # Without the lock: a destination on a slow disk must not hold up the callers.
            if sum([sink.flush() for sink in sinks]):
                self._progress_at = time.monotonic()
                is_more = is_more or is_held_up
            self._drop([source for source in sources if source.is_ended])
            is_out_of_room = any(sink.is_out_of_room for sink in sinks)
            stall_s = min(self.stall_s, ROOM_STALL_S) if is_out_of_room else self.stall_s
            left_s = self._progress_at + stall_s - time.monotonic()
            if is_closing and not self._sources and not any(sink.pending for sink in sinks):
                return
            if is_closing and left_s <= 0 and not is_more:
                self._drop(self._sources)
                where = "the rest is only in the log files, if any"
                _LOGGER.warning("the console takes no output: %s", where)
                return
            if not is_more:
                self._wait(left_s if is_closing else None)

    def _wait(self, timeout_s: float | None) -> None:
        """Sleep until a source has more, a destination takes more, or a call has come."""
        poll = select.poll()
        poll.register(self._wakeup_fd, select.POLLIN)
        with self._lock:
            inotify_fd = self._inotify_fd
            if inotify_fd >= 0:
                poll.register(inotify_fd, select.POLLIN)
            for source in _ready(self._sources):
                for fd in source.wait_fds:
                    poll.register(fd, select.POLLIN)
            for sink in self._sinks.values():
                if sink.is_out_of_room:
                    timeout_s = min(timeout_s or ROOM_RETRY_S, ROOM_RETRY_S)
                elif sink.pending:
                    poll.register(sink.fd, select.POLLOUT)
            if timeout_s is None and any(source.watch is None for source in self._sources):
                timeout_s = LOOK_AGAIN_S
        poll.poll(None if timeout_s is None else timeout_s * 1000)
        with suppress(BlockingIOError):
            os.eventfd_read(self._wakeup_fd)
        # All notices, and before the files are read, so that no write goes unnoticed. Which files
        # they name is not looked at: asking every file costs less.
        with suppress(BlockingIOError):
            while inotify_fd >= 0 and os.read(inotify_fd, _NOTICES_BYTES):
                pass

    def _drop(self, dropped: Sequence[_Source]) -> None:
        with self._lock:
            self._sources = [source for source in self._sources if source not in dropped]
            # The system knows one watch per file, however often it is asked for.
            watches = {source.watch for source in self._sources}
            for source in dropped:
                source.close()
                if source.watch and source.watch not in watches:
                    with suppress(OSError):  # the file is gone
                        inotify("rm_watch", self._inotify_fd, source.watch)
            used = {sink for source in self._sources for sink in source.sinks}
            for key, sink in tuple(self._sinks.items()):
                if sink not in used and not sink.pending:
                    self._sinks.pop(key).close()


def _ready(sources: Sequence[_Source]) -> list[_Source]:
    """Return the sources that wait for no destination and, before it, for no earlier turn."""
    turns: dict[Sink, int] = {}
    for source in sources:
        for sink in source.sinks:
            turns.setdefault(sink, source.turn)
    return [
        source
        for source in sources
        if all(
            turns[sink] == source.turn and not _is_held_up(source, sink) for sink in source.sinks
        )
    ]


def _is_held_up(source: _Source, sink: Sink) -> bool:
    """Return whether a source waits for a sink: on a full disk, a file does, and no worker."""
    return sink.is_full or (sink.is_out_of_room and isinstance(source, FollowedFile))


def inotify(call: str, *arguments: int | bytes) -> int:
    """Ask the kernel. Raises ``OSError``, also at a limit ``fs.inotify.max_user_*``."""
    result: int = getattr(ctypes.CDLL(None, use_errno=True), f"inotify_{call}")(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"inotify: {os.strerror(number)}")
    return result
