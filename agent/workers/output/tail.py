"""Shell. Shows elsewhere what workers write: lines of their files (the tee), bytes of their pipes.

A worker that writes to a file waits for no reader: the file is the buffer.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TextIO, TypeAlias

from drumbeat.agent.workers.output.destination import Destination
from drumbeat.agent.workers.output.inotify import FileNotices
from drumbeat.agent.workers.output.sources import FollowedFile, OutputPipe
from drumbeat.command.console import ROOM_RETRY_S

_LOGGER = logging.getLogger(__name__)

STALL_S = 30.0  # how long `Tail.close` waits for a destination that takes nothing, by default
ROOM_STALL_S = 1.0  # the same for one on a full disk
LOOK_AGAIN_S = 0.1  # how often files are looked at if the system has no inotify watch left for us

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
        # All below is guarded by the lock; what destinations hold belongs to the thread.
        self._is_closing = False
        self._sources: list[_Source] = []
        self._destinations: dict[object, Destination] = {}
        self._notices: FileNotices | None = None

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
            places = tuple(self._open(to) for to in (destination, filtered) if to is not None)
            fd = os.open(source_path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
            watch = self._watch(fd)
            source = FollowedFile(fd, watch, places, prefix, needles, turn, self._wake)
            self._begin(source)
        return source

    def add_reader(self, source_path: str, on_chunk: Callable[[bytes], None]) -> FollowedFile:
        """Call back with what is written to a file from now on; waits for no destination.

        The file is made if missing, and may be emptied meanwhile. Raises ``OSError``.
        """
        with self._lock:
            fd = os.open(source_path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
            source = FollowedFile(fd, self._watch(fd), (), b"", (), 0, self._wake)
            source.position, source.on_chunk = os.lseek(fd, 0, os.SEEK_END), on_chunk
            self._begin(source)
        return source

    def add_pipe(self, path: str, destination: int, *, is_shown: bool) -> OutputPipe:
        """Return a worker's stream, shown at `destination` or nowhere; see `OutputPipe`."""
        with self._lock:
            places = (self._open(destination),) if is_shown else ()
            pipe = OutputPipe(path, destination, places, self._wake)
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
        for destination in self._destinations.values():
            destination.close()
        if self._notices is not None:
            self._notices.close()
        if self._wakeup_fd >= 0:
            os.close(self._wakeup_fd)
            self._wakeup_fd = -1

    def hurry(self) -> None:
        """Let `close`, also one that is under way, give up what is not taken at once."""
        self.stall_s = 0.0
        if self._thread is not None and self._thread.is_alive():
            self._wake()

    def _open(self, destination: int | TextIO) -> Destination:
        # Two descriptors may lead to the same place.
        key = os.fstat(destination)[1:3] if isinstance(destination, int) else id(destination)
        if key not in self._destinations:
            self._destinations[key] = Destination(destination)
        return self._destinations[key]

    def _watch(self, fd: int) -> int | None:
        try:
            self._notices = self._notices or FileNotices()
            # By this path it is the very file that is open, whatever has its name meanwhile.
            return self._notices.watch(f"/proc/self/fd/{fd}")
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
                destinations = tuple(self._destinations.values())
            if is_closing:
                for source in sources:
                    source.finish()
            # Read first, then write: what comes of one round of chunks goes out together.
            is_more = sum([source.step() for source in _ready(sources)]) > 0
            is_held_up = any(destination.is_full for destination in destinations)
            # Without the lock: a destination on a slow disk must not hold up the callers.
            if sum([destination.flush() for destination in destinations]):
                self._progress_at = time.monotonic()
                is_more = is_more or is_held_up
            self._drop([source for source in sources if source.is_ended])
            is_out_of_room = any(destination.is_out_of_room for destination in destinations)
            stall_s = min(self.stall_s, ROOM_STALL_S) if is_out_of_room else self.stall_s
            left_s = self._progress_at + stall_s - time.monotonic()
            is_pending = any(destination.pending for destination in destinations)
            if is_closing and not self._sources and not is_pending:
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
            notices = self._notices
            if notices is not None:
                poll.register(notices.fd, select.POLLIN)
            for source in _ready(self._sources):
                for fd in source.wait_fds:
                    poll.register(fd, select.POLLIN)
            for destination in self._destinations.values():
                if destination.is_out_of_room:
                    timeout_s = min(timeout_s or ROOM_RETRY_S, ROOM_RETRY_S)
                elif destination.pending:
                    poll.register(destination.fd, select.POLLOUT)
            if timeout_s is None and any(source.watch is None for source in self._sources):
                timeout_s = LOOK_AGAIN_S
        poll.poll(None if timeout_s is None else timeout_s * 1000)
        with suppress(BlockingIOError):
            os.eventfd_read(self._wakeup_fd)
        if notices is not None:
            notices.drain()

    def _drop(self, dropped: Sequence[_Source]) -> None:
        with self._lock:
            self._sources = [source for source in self._sources if source not in dropped]
            watches = {source.watch for source in self._sources}
            for source in dropped:
                source.close()
                if self._notices is not None and source.watch and source.watch not in watches:
                    self._notices.forget(source.watch)
            used = {place for source in self._sources for place in source.destinations}
            for key, destination in tuple(self._destinations.items()):
                if destination not in used and not destination.pending:
                    self._destinations.pop(key).close()


def _ready(sources: Sequence[_Source]) -> list[_Source]:
    """Return the sources that wait for no destination and, before it, for no earlier turn."""
    turns: dict[Destination, int] = {}
    for source in sources:
        for destination in source.destinations:
            turns.setdefault(destination, source.turn)
    return [
        source
        for source in sources
        if all(
            turns[destination] == source.turn and not _is_held_up(source, destination)
            for destination in source.destinations
        )
    ]


def _is_held_up(source: _Source, destination: Destination) -> bool:
    """Return whether a source waits: on a full disk, a file does, and no worker."""
    is_file = isinstance(source, FollowedFile)
    return destination.is_full or (destination.is_out_of_room and is_file)
