"""Shell. Reads the output of this host's workers for one request, from place to place."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from drumbeat.agent.workers.output.inotify import FileNotices
from drumbeat.agent.workers.output.kept import Kept, KeptFile, KeptOutput, NotKept, StreamKey
from drumbeat.agent.workers.output.ring import Place
from drumbeat.v1 import session_pb2

BATCH_BYTES = 128 * 1024  # of all streams in one message, before secrets are taken out
LOOK_AGAIN_S = 0.5  # how often files are looked at that nothing tells of


class LogReading:
    """How far the streams of one request were read. Its methods block: for a thread of files."""

    def __init__(
        self,
        request: session_pb2.LogRequest,
        kept: KeptOutput,
        redact: Callable[[str], str],
        cursors: Iterable[session_pb2.LogCursor],
    ) -> None:
        self._request, self._kept, self._redact = request, kept, redact
        self._places = {
            StreamKey(cursor.round_id, cursor.rank, cursor.stream): Place(
                cursor.offset, cursor.lines
            )
            for cursor in cursors
        }
        self._begun: set[StreamKey] = set()
        self._ends: dict[StreamKey, int] = {}  # where to end, unless what comes is followed
        self._turn = 0

    def batch(
        self, watch: Callable[[str], None] | None, *, is_last: bool
    ) -> list[session_pb2.LogPiece]:
        """Return what has come, each stream in its turn; files are watched before they are read."""
        streams, latest = self._kept.streams()
        keys = [key for key in streams if is_wanted(key, self._request)]
        pieces: list[session_pb2.LogPiece] = []
        room = BATCH_BYTES
        for number in range(len(keys)):
            key = keys[(self._turn + number) % len(keys)]
            if room <= 0:
                self._turn = (self._turn + number) % len(keys)
                break
            stream = streams[key]
            if isinstance(stream, NotKept):
                if key not in self._begun:
                    pieces.append(_piece(key, Place(), problem=stream))
            else:
                try:
                    if watch and isinstance(stream, KeptFile) and key.round_id == latest:
                        watch(stream.path)
                    new_pieces, size = self._read(key, stream, is_last or key.round_id != latest)
                    pieces += new_pieces
                    room -= size
                except OSError as error:
                    if key not in self._begun:
                        why = f"its file can't be read: {error.strerror}"
                        pieces.append(_piece(key, Place(), problem=why))
            self._begun.add(key)
        return pieces

    def _read(
        self, key: StreamKey, stream: Kept, is_last: bool
    ) -> tuple[list[session_pb2.LogPiece], int]:
        if (place := self._places.get(key)) is None:
            is_first_round = key.round_id == self._request.since_round
            place = stream.tail(self._request.tail) if is_first_round else Place()
        if not self._request.follow:
            end = self._ends.setdefault(key, stream.end())
            if place.offset >= end and key in self._begun:
                return [], 0
        piece = stream.read(place, is_last=is_last)
        self._places[key] = piece.next
        if piece.next == place and key in self._begun:
            return [], 0
        text = self._redact(piece.data.decode(errors="replace"))
        return [_piece(key, piece.next, text=text, missed=piece.missed)], len(piece.data)


class News:
    """Whether there may be more output since it was last waited for. Belongs to one event loop."""

    def __init__(self, kept: KeptOutput) -> None:
        self._loop, self._kept = asyncio.get_running_loop(), kept
        self._is_due = asyncio.Event()
        self._lock = threading.Lock()  # a thread may still watch when this is closed
        self._is_closed = False
        self._notices: FileNotices | None = None
        self._is_blind = False  # the system tells of no file

    def wake(self) -> None:
        """Let ``wait`` return."""
        self._is_due.set()

    def expect(self) -> None:
        """Forget the news so far; what comes from now on counts."""
        self._is_due.clear()
        self._kept.call_once(self._wake_from_thread)

    def watch(self, path: str) -> None:
        """Tell of the next write to a file. For any thread."""
        with self._lock:
            if self._is_closed:
                return
            try:
                if self._notices is None:
                    self._notices = FileNotices()
                    self._loop.call_soon_threadsafe(self._add_reader, self._notices)
                self._notices.watch(path, is_once=True)
            except OSError:
                self._is_blind = True

    async def wait(self) -> None:
        """Return once there may be more."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_AGAIN_S if self._is_blind else None):
                await self._is_due.wait()

    def close(self) -> None:
        """Give everything back."""
        with self._lock:
            self._is_closed = True
            if self._notices is not None:
                self._loop.remove_reader(self._notices.fd)
                self._notices.close()

    def _add_reader(self, notices: FileNotices) -> None:
        if not self._is_closed:
            self._loop.add_reader(notices.fd, self._take_notices, notices)

    def _take_notices(self, notices: FileNotices) -> None:
        notices.drain()
        self._is_due.set()

    def _wake_from_thread(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._is_due.set)


def is_wanted(key: StreamKey, request: session_pb2.LogRequest) -> bool:
    """Return whether a stream is among those that are asked for."""
    is_of_rank = not request.ranks or key.rank in request.ranks
    return is_of_rank and key.round_id >= request.since_round


def _piece(key: StreamKey, place: Place, **fields: Any) -> session_pb2.LogPiece:
    cursor = session_pb2.LogCursor(**key._asdict(), **place._asdict())
    return session_pb2.LogPiece(next=cursor, **fields)
