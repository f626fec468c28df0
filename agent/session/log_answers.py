"""Shell. Brings the output of this host's workers to the coordinator, as long as any one reads.

Each request has a connection of its own, and is written no faster than it is read: what waits is
with the workers' output, in files and rings.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import closing, suppress
from functools import partial
from typing import Any

import structlog

from drumbeat.agent.host.file_thread import FilesStalled, FileThread
from drumbeat.agent.session.convert import Identity
from drumbeat.agent.session.transport import Connection, TransportError
from drumbeat.agent.workers.output.inotify import FileNotices
from drumbeat.agent.workers.output.kept import Kept, KeptFile, KeptOutput, NotKept, StreamKey
from drumbeat.agent.workers.output.ring import Place
from drumbeat.v1 import common_pb2, session_pb2
from drumbeat.wire.mapping import duration

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
        self._followed: set[StreamKey] = set()  # read to their ends: what comes then is new
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
        is_cut = False
        if (place := self._places.get(key)) is None:
            is_first_round = key.round_id == self._request.since_round
            place = stream.tail(self._request.tail) if is_first_round else Place()
            most = self._request.tail_bytes if is_first_round else 0
            if most and (is_cut := stream.end() - most > place.offset):
                place = place._replace(offset=stream.end() - most)
        if not self._request.follow:
            end = self._ends.setdefault(key, stream.end())
            if place.offset >= end and key in self._begun:
                return [], 0
        piece = stream.read(place, is_last=is_last)
        self._places[key] = piece.next
        if piece.next == place and key in self._begun:
            self._followed.add(key)
            return [], 0
        fields: dict[str, Any] = {"age": duration(0.0)} if key in self._followed else {}
        if key not in self._begun and isinstance(stream, KeptFile):
            fields["path"] = stream.path
        # Half a line may have half a secret, which is not recognized.
        data = piece.data.partition(b"\n")[2] if is_cut else piece.data
        text = self._redact(data.decode(errors="replace"))
        return [_piece(key, piece.next, text=text, missed=piece.missed, **fields)], len(data)


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


log = structlog.get_logger()

REQUESTS_MAX = 32  # served at once; the coordinator has no more
READ_TIMEOUT_S = 30.0  # a file system that stands still costs only those who read logs
RETRY_S = 2.0  # after a break, at most
GATHER_S = 0.05  # what is written within it goes together, so that short lines cost little


class LogAnswers:
    """Of one session. Belongs to one event loop; reading is done by a thread of its own."""

    def __init__(
        self, run_id: str, identity: Identity, kept: KeptOutput, redact: Callable[[str], str]
    ) -> None:
        self._run_id, self._identity = run_id, identity
        self._kept, self._redact = kept, redact
        self._wanted: dict[str, session_pb2.LogRequest] = {}
        self._changed = asyncio.Event()
        self._answering: dict[str, asyncio.Task[None]] = {}
        self._connection: Connection  # before anything is asked for
        self._reading: set[News] = set()
        self._is_last = False  # workers write nothing any more
        self._files = FileThread("logs")

    def asked(self, requests: session_pb2.LogRequests) -> None:
        """Take in all that is asked for at present."""
        self._wanted = {request.request_id: request for request in requests.requests[:REQUESTS_MAX]}
        self._changed.set()

    async def run(self, connection: Connection) -> None:
        """Answer until cancelled."""
        self._connection = connection
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                self._begin_and_end()
        finally:
            for task in self._answering.values():
                task.cancel()
            await asyncio.gather(*self._answering.values(), return_exceptions=True)
            self._files.close()

    def _begin_and_end(self) -> None:
        """Answer what is asked for at present, and nothing else."""
        for request_id in self._answering.keys() - self._wanted.keys():
            self._answering.pop(request_id).cancel()
        for request_id, request in self._wanted.items():
            if request_id not in self._answering:
                answer = asyncio.create_task(self._answer(request))
                self._answering[request_id] = answer

    @property
    def log_dir(self) -> str:
        """The directory that has the output of the latest round; empty: it goes to no file."""
        return self._kept.directory

    @property
    def is_read(self) -> bool:
        """Whether any of it is asked for, and not told yet."""
        return bool(self._unanswered())

    def _unanswered(self) -> list[asyncio.Task[None]]:
        self._begin_and_end()
        keys = self._kept.streams()[0]
        return [
            task
            for request_id, task in self._answering.items()
            if not task.done() and any(is_wanted(key, self._wanted[request_id]) for key in keys)
        ]

    async def finish(self, *, timeout_s: float) -> None:
        """Tell all that workers wrote which are gone, if it is taken within the time."""
        self._is_last = True
        for news in self._reading:
            news.wake()
        if tasks := self._unanswered():
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await asyncio.gather(*map(asyncio.shield, tasks), return_exceptions=True)

    async def _answer(self, request: session_pb2.LogRequest) -> None:
        while True:
            begin = asyncio.get_running_loop().create_future()

            def take(
                response: session_pb2.ReportLogsResponse,
                begin: asyncio.Future[session_pb2.ReportLogsResponse] = begin,
            ) -> None:
                if not begin.done():
                    begin.set_result(response)

            try:
                if request.follow:
                    await self._until_concerned(request)
                await self._connection.report_logs(self._messages(request, begin), take)
            except (TransportError, FilesStalled) as error:
                log.debug("output not delivered, trying again", reason=str(error))
            except Exception:
                # In any case: it is for readers alone, and the session goes on.
                log.exception("output not delivered")
                return
            else:
                return
            await asyncio.sleep(random.uniform(RETRY_S / 2, RETRY_S))  # noqa: S311 - jitter

    async def _until_concerned(self, request: session_pb2.LogRequest) -> None:
        """Return once there are workers here whose output is asked for."""
        with closing(News(self._kept)) as news:
            while True:
                news.expect()
                if any(is_wanted(key, request) for key in self._kept.streams()[0]):
                    return
                await news.wait()

    async def _messages(
        self,
        request: session_pb2.LogRequest,
        begin: asyncio.Future[session_pb2.ReportLogsResponse],
    ) -> AsyncGenerator[session_pb2.ReportLogsRequest, None]:
        with closing(News(self._kept)) as news:
            self._reading.add(news)
            try:
                fence = common_pb2.Fence(
                    run_id=self._run_id, incarnation=self._identity.incarnation
                )
                yield session_pb2.ReportLogsRequest(
                    fence=fence,
                    incarnation_key=self._identity.incarnation_key,
                    request_id=request.request_id,
                )
                cursors = (await begin).cursors
                async for pieces in self._pieces(request, news, cursors):
                    yield session_pb2.ReportLogsRequest(pieces=pieces)
            finally:
                self._reading.discard(news)

    async def _pieces(
        self,
        request: session_pb2.LogRequest,
        news: News,
        cursors: Iterable[session_pb2.LogCursor],
    ) -> AsyncGenerator[list[session_pb2.LogPiece], None]:
        reading = LogReading(request, self._kept, self._redact, cursors)
        watch = news.watch if request.follow else None
        while True:
            is_last = self._is_last or not request.follow
            news.expect()
            read = partial(reading.batch, watch, is_last=is_last)
            pieces = await self._files.run(read, timeout_s=READ_TIMEOUT_S)
            if pieces:
                yield pieces
                if not is_last and sum(len(piece.text) for piece in pieces) < BATCH_BYTES // 2:
                    await asyncio.sleep(GATHER_S)
            elif is_last:
                return
            else:
                await news.wait()
