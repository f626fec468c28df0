"""A coordinator that says whatever a test wants said, and hears what an agent says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration

from drumbeat.v1 import failure_pb2, inprocess_pb2, session_pb2, session_pb2_grpc
from tests.support.waiting import MS

# Its poller is one for all loops of this process; made here, it is no leak of a test.
grpc.aio.init_grpc_aio()

DEADLINE_S = 40_000 * MS
"""Far longer than anything here takes; only a failing test waits for it."""

PACE = session_pb2.Pace(
    # So that nothing arrives because of the pace.
    heartbeat_interval=Duration(seconds=30),
    lease=Duration(seconds=90),
    reconnect_delay_max=Duration(seconds=1),
)

Context = grpc.aio.ServicerContext[Any, Any]


class Session:
    """One session of an agent, from its hello on."""

    def __init__(self, hello: session_pb2.Hello) -> None:
        self.hello = hello
        self.beat = hello.beat
        self._heard: asyncio.Queue[session_pb2.Beat] = asyncio.Queue()
        self._unsent: asyncio.Queue[session_pb2.Directive | None] = asyncio.Queue()
        self.say(welcome=session_pb2.Welcome(session_id="s", pace=PACE))

    def say(self, **response: Any) -> None:
        """Say something."""
        self._unsent.put_nowait(session_pb2.Directive(**response))

    def direct(self, iteration: int, **kind: Any) -> None:
        """Say what the workers shall do in an iteration of round 0."""
        self.say(inprocess=inprocess_pb2.InprocessDirective(iteration=iteration, **kind))

    def cut(self) -> None:
        """End the stream."""
        self._unsent.put_nowait(None)

    async def wait_for(self, is_it: Callable[[session_pb2.Beat], bool]) -> session_pb2.Beat:
        """Return the first beat from the present one on that is as wanted."""
        async with asyncio.timeout(DEADLINE_S):
            while not is_it(self.beat):
                self.beat = await self._heard.get()
        return self.beat

    async def reached(
        self, iteration: int, step: inprocess_pb2.InprocessStep.ValueType
    ) -> inprocess_pb2.InprocessReport:
        """Return the first report of this step."""

        def is_it(beat: session_pb2.Beat) -> bool:
            report = beat.inprocess
            return beat.HasField("inprocess") and (report.iteration, report.step) == (
                iteration,
                step,
            )

        return (await self.wait_for(is_it)).inprocess

    async def converse(self, context: Context) -> None:
        """Hear and say until either side ends it."""
        hearing = asyncio.create_task(self._hear(context))
        try:
            while (response := await self._unsent.get()) is not None:
                await context.write(response)
        finally:
            hearing.cancel()

    async def _hear(self, context: Context) -> None:
        while isinstance(request := await context.read(), session_pb2.AgentReport):
            if request.HasField("beat"):
                self._heard.put_nowait(request.beat)
        self.cut()


class FakeCoordinator(session_pb2_grpc.AgentServiceServicer):
    """Serves one agent."""

    def __init__(self) -> None:
        self.sessions: asyncio.Queue[Session] = asyncio.Queue()
        self.records: asyncio.Queue[failure_pb2.FailureRecord] = asyncio.Queue()
        self.port = 0

    async def session(self) -> Session:
        """Return the next session."""
        async with asyncio.timeout(DEADLINE_S):
            return await self.sessions.get()

    async def record(self) -> failure_pb2.FailureRecord:
        """Return the next failure record."""
        async with asyncio.timeout(DEADLINE_S):
            return await self.records.get()

    async def OpenSession(  # type: ignore[override]  # noqa: N802 - gRPC gives the name
        self, _requests: object, context: Context
    ) -> None:
        request = await context.read()
        assert isinstance(request, session_pb2.AgentReport)
        session = Session(request.hello)
        self.sessions.put_nowait(session)
        await session.converse(context)

    async def ReportFailures(  # type: ignore[override]  # noqa: N802 - gRPC gives the name
        self, _requests: object, context: Context
    ) -> None:
        while isinstance(request := await context.read(), session_pb2.ReportFailuresRequest):
            record = request.record
            self.records.put_nowait(record)
            answer = session_pb2.ReportFailuresResponse(
                incarnation=record.fence.incarnation, sequence=record.sequence, kept=True
            )
            await context.write(answer)


@asynccontextmanager
async def fake_coordinator() -> AsyncIterator[FakeCoordinator]:
    """Serve on loopback."""
    coordinator = FakeCoordinator()
    server = grpc.aio.server()
    session_pb2_grpc.add_AgentServiceServicer_to_server(coordinator, server)
    coordinator.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield coordinator
    finally:
        await server.stop(0)
