"""An agent brings output as long as it is asked for, and tells the last of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from drumbeat.agent.session import log_answers
from drumbeat.agent.session.convert import Identity
from drumbeat.agent.session.log_answers import LogAnswers
from drumbeat.agent.session.transport import TransportError
from drumbeat.agent.workers.output.kept import STDOUT, KeptFile, KeptOutput, StreamKey
from drumbeat.v1 import session_pb2
from tests.support.waiting import MS

DEADLINE_S = 10_000 * MS


class Call:
    """One call of the agent: what it says, until it closes its side or is cut."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[session_pb2.ReportLogsRequest | None] = asyncio.Queue()
        self.ended = asyncio.Event()
        self.error: TransportError | None = None

    async def texts(self, count: int) -> list[str]:
        found: list[str] = []
        async with asyncio.timeout(DEADLINE_S):
            while len(found) < count and (message := await self.said.get()) is not None:
                found += [piece.text for piece in message.pieces if piece.text]
        return found


class Coordinator:
    """A connection that takes all that comes."""

    def __init__(self) -> None:
        self.calls: asyncio.Queue[Call] = asyncio.Queue()
        self.cursors: list[session_pb2.LogCursor] = []

    async def report_logs(self, requests: Any, take: Any) -> None:
        self.calls.put_nowait(call := Call())
        try:
            async for message in requests:
                call.said.put_nowait(message)
                if message.request_id:
                    take(session_pb2.ReportLogsResponse(cursors=self.cursors))
                if call.error is not None:
                    raise call.error
            call.said.put_nowait(None)
        finally:
            await requests.aclose()
            call.ended.set()

    async def call(self) -> Call:
        async with asyncio.timeout(DEADLINE_S):
            return await self.calls.get()


@asynccontextmanager
async def answering(kept: KeptOutput) -> AsyncIterator[tuple[LogAnswers, Coordinator]]:
    answers = LogAnswers("run", Identity(incarnation="i", host="h"), kept, str)
    coordinator = Coordinator()
    task = asyncio.create_task(answers.run(cast("Any", coordinator)))
    try:
        yield answers, coordinator
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def asked(*ranks: int) -> session_pb2.LogRequests:
    request = session_pb2.LogRequest(request_id="r", ranks=ranks, tail=9, follow=True)
    return session_pb2.LogRequests(requests=[request])


def begin(kept: KeptOutput, round_id: int, rank: int, path: Path) -> None:
    kept.begin(round_id, {StreamKey(round_id, rank, STDOUT): KeptFile(str(path))})


async def test_only_who_has_such_a_worker_calls_and_as_long_as_it_is_asked(tmp_path: Path) -> None:
    path, kept = tmp_path / "out", KeptOutput()
    path.write_text("one\n")
    begin(kept, 0, 0, path)
    async with answering(kept) as (answers, coordinator):
        answers.asked(asked(1))
        await asyncio.sleep(0)
        assert not answers.is_read
        begin(kept, 1, 1, path)
        call = await coordinator.call()
        assert await call.texts(1) == ["one\n"]
        answers.asked(asked(1))  # again: nothing changes
        answers.asked(session_pb2.LogRequests())
        async with asyncio.timeout(DEADLINE_S):
            await call.ended.wait()
        assert coordinator.calls.empty()


async def test_after_a_break_it_goes_on_where_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_answers, "RETRY_S", 10 * MS)
    path, kept = tmp_path / "out", KeptOutput()
    path.write_text("one\n")
    begin(kept, 0, 0, path)
    async with answering(kept) as (answers, coordinator):
        answers.asked(asked())
        call = await coordinator.call()
        assert await call.texts(1) == ["one\n"]
        place = session_pb2.LogCursor(round_id=0, rank=0, offset=4, lines=1)
        place.stream = session_pb2.LOG_STREAM_STDOUT
        coordinator.cursors = [place]
        call.error = TransportError("cut")
        with path.open("a") as file:
            file.write("two\nthr")
        again = await coordinator.call()
        assert await again.texts(1) == ["two\n"]

        # Its workers are gone: the rest is told, and nothing is waited for after it.
        await answers.finish(timeout_s=DEADLINE_S)
        assert await again.texts(2) == ["thr"]
        assert again.ended.is_set()


async def test_what_is_asked_as_it_ends_is_told_before_it_is_gone(tmp_path: Path) -> None:
    """The request and the order to leave may come at once."""
    path, kept = tmp_path / "out", KeptOutput()
    path.write_text("a\n" * 100)
    begin(kept, 3, 7, path)
    async with answering(kept) as (answers, coordinator):
        await asyncio.sleep(0)
        request = session_pb2.LogRequest(
            request_id="r", ranks=[7], since_round=3, tail=50, tail_bytes=9
        )
        answers.asked(session_pb2.LogRequests(requests=[request]))
        assert answers.is_read
        await answers.finish(timeout_s=DEADLINE_S)
        assert not answers.is_read
        call = await coordinator.call()
        assert await call.texts(1) == ["a\n" * 4]
