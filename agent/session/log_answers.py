"""Shell. Brings the output of this host's workers to the coordinator, as long as any one reads.

Each request has a connection of its own, and is written no faster than it is read: what waits is
with the workers' output, in files and rings.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import closing, suppress
from functools import partial

import structlog

from drumbeat.agent.host.file_thread import FilesStalled, FileThread
from drumbeat.agent.session.convert import Identity
from drumbeat.agent.session.log_reading import BATCH_BYTES, LogReading, News, is_wanted
from drumbeat.agent.session.transport import Connection, TransportError
from drumbeat.agent.workers.output.kept import KeptOutput
from drumbeat.v1 import common_pb2, session_pb2

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
        self._reading: set[News] = set()
        self._is_last = False  # workers write nothing any more
        self._files = FileThread("logs")

    def asked(self, requests: session_pb2.LogRequests) -> None:
        """Take in all that is asked for at present."""
        self._wanted = {request.request_id: request for request in requests.requests[:REQUESTS_MAX]}
        self._changed.set()

    async def run(self, connection: Connection) -> None:
        """Answer until cancelled."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                for request_id in self._answering.keys() - self._wanted.keys():
                    self._answering.pop(request_id).cancel()
                for request_id, request in self._wanted.items():
                    if request_id not in self._answering:
                        answer = asyncio.create_task(self._answer(request, connection))
                        self._answering[request_id] = answer
        finally:
            for task in self._answering.values():
                task.cancel()
            await asyncio.gather(*self._answering.values(), return_exceptions=True)
            self._files.close()

    @property
    def is_read(self) -> bool:
        """Whether any of it is asked for at present."""
        return bool(self._reading)

    async def finish(self, *, timeout_s: float) -> None:
        """Tell all that workers wrote which are gone, if it is taken within the time."""
        self._is_last = True
        for news in self._reading:
            news.wake()
        if self._reading:
            tasks = self._answering.values()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await asyncio.gather(*map(asyncio.shield, tasks), return_exceptions=True)

    async def _answer(self, request: session_pb2.LogRequest, connection: Connection) -> None:
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
                await connection.report_logs(self._messages(request, begin), take)
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
