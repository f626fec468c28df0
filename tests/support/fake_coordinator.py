"""A coordinator that says whatever a test wants said, and hears what an agent says."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import grpc
from google.protobuf.duration_pb2 import Duration

from drumbeat.access.token import Token
from drumbeat.coordinator.errors import NotLeader
from drumbeat.v1 import common_pb2, failure_pb2, inprocess_pb2, session_pb2, session_pb2_grpc
from drumbeat.wire.mapping import LOST_TERM_KEY
from tests.support.certificates import Pair
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


class Refused(NamedTuple):
    """What ends a call."""

    status: grpc.StatusCode
    refusal: common_pb2.Refusal.ValueType
    text: str
    leader: str = ""

    async def abort(self, context: Context) -> None:
        """End a call so."""
        told = common_pb2.ErrorDetail(refusal=self.refusal, leader=self.leader)
        detail = told.SerializeToString()
        await context.abort(self.status, self.text, (("drumbeat-error-bin", detail),))


UNAUTHENTICATED = Refused(
    grpc.StatusCode.UNAUTHENTICATED,
    common_pb2.REFUSAL_UNAUTHENTICATED,
    "the coordinator does not let this caller in: the token was revoked",
)
FORBIDDEN = Refused(
    grpc.StatusCode.PERMISSION_DENIED,
    common_pb2.REFUSAL_FORBIDDEN,
    "xxxxxxxx may not do this: it is for the run other only",
)


def not_leading(leader: str = "", reason: str = "it starts") -> Refused:
    """Return what a coordinator says that does not lead."""
    text = str(NotLeader(leader, reason))
    unavailable, refusal = grpc.StatusCode.UNAVAILABLE, common_pb2.REFUSAL_NOT_LEADER
    return Refused(unavailable, refusal, text, leader)


class Session:
    """One session of an agent, from its hello on."""

    def __init__(self, hello: session_pb2.Hello, term: int = 0) -> None:
        self.hello = hello
        self.beat = hello.beat
        self._heard: asyncio.Queue[session_pb2.Beat] = asyncio.Queue()
        self._unsent: asyncio.Queue[session_pb2.Directive | Refused | None] = asyncio.Queue()
        self.say(welcome=session_pb2.Welcome(session_id="s", pace=PACE, term=term))

    def say(self, **response: Any) -> None:
        """Say something."""
        self._unsent.put_nowait(session_pb2.Directive(**response))

    def direct(self, iteration: int, **kind: Any) -> None:
        """Say what the workers shall do in an iteration of round 0."""
        self.say(inprocess=inprocess_pb2.InprocessDirective(iteration=iteration, **kind))

    def refuse(self, refused: Refused) -> None:
        """End the stream with a refusal."""
        self._unsent.put_nowait(refused)

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
                if isinstance(response, Refused):
                    await response.abort(context)
                else:
                    await context.write(response)
        finally:
            hearing.cancel()

    async def _hear(self, context: Context) -> None:
        while isinstance(request := await context.read(), session_pb2.AgentReport):
            if request.HasField("beat"):
                self._heard.put_nowait(request.beat)
        self.cut()


class FakeCoordinator(session_pb2_grpc.AgentServiceServicer):
    """Serves one agent; if it has ``tokens``, one that shows any of them.

    With ``answer`` it leads no more: it refuses each session so, once it ``is_free`` to answer.
    """

    def __init__(self) -> None:
        self.tokens: set[Token] = set()
        self.term = 0
        self.answer: Refused | None = None
        self.is_free = asyncio.Event()  # to answer
        self.is_free.set()
        self.is_deaf = False  # to failure records
        self.lost_terms: list[int] = []  # with which it was called
        self.refused = 0
        self.is_asked = asyncio.Event()
        self.sessions: asyncio.Queue[Session] = asyncio.Queue()
        self.records: asyncio.Queue[failure_pb2.FailureRecord] = asyncio.Queue()
        self.port = 0

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

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
        await self._check(context)
        assert isinstance(request, session_pb2.AgentReport)
        metadata = dict(context.invocation_metadata() or ())
        self.lost_terms.append(int(metadata.get(LOST_TERM_KEY, 0)))
        self.is_asked.set()
        await self.is_free.wait()
        if self.answer is not None:
            await self.answer.abort(context)
        session = Session(request.hello, self.term)
        self.sessions.put_nowait(session)
        await session.converse(context)

    async def ReportFailures(  # type: ignore[override]  # noqa: N802 - gRPC gives the name
        self, _requests: object, context: Context
    ) -> None:
        await self._check(context)
        while isinstance(request := await context.read(), session_pb2.ReportFailuresRequest):
            record = request.record
            if self.is_deaf:
                continue
            self.records.put_nowait(record)
            answer = session_pb2.ReportFailuresResponse(
                incarnation=record.fence.incarnation, sequence=record.sequence, kept=True
            )
            await context.write(answer)

    async def ReportStacks(  # noqa: N802 - gRPC gives the name
        self, _request: session_pb2.ReportStacksRequest, context: Context
    ) -> session_pb2.ReportStacksResponse:
        await self._check(context)
        return session_pb2.ReportStacksResponse()

    async def ReportLogs(  # type: ignore[override]  # noqa: N802 - gRPC gives the name
        self, _requests: object, context: Context
    ) -> None:
        await self._check(context)

    async def JoinQuorum(  # type: ignore[override]  # noqa: N802 - gRPC gives the name
        self, _requests: object, context: Context
    ) -> None:
        await self._check(context)

    async def _check(self, context: Context) -> None:
        shown = dict(context.invocation_metadata() or ()).get("authorization")
        if self.tokens and shown not in {f"Bearer {token.text()}" for token in self.tokens}:
            self.refused += 1
            await UNAUTHENTICATED.abort(context)


@asynccontextmanager
async def fake_coordinator(
    pair: Pair | None = None, *, port: int = 0
) -> AsyncIterator[FakeCoordinator]:
    """Serve on loopback, with a certificate if it is given, else in plaintext."""
    coordinator = FakeCoordinator()
    server = grpc.aio.server()
    session_pb2_grpc.add_AgentServiceServicer_to_server(coordinator, server)
    where = f"127.0.0.1:{port}"
    if pair is None:
        coordinator.port = server.add_insecure_port(where)
    else:
        secret = grpc.ssl_server_credentials([(pair.key, pair.certificate)])
        coordinator.port = server.add_secure_port(where, secret)
    await server.start()
    try:
        yield coordinator
    finally:
        await server.stop(0)
