"""The agent's side of the protocol without an agent: says whatever a test wants said."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import grpc
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc

from drumbeat.coordinator.cluster.server import serving
from drumbeat.coordinator.config import CoordinatorConfig
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.tokens.caller import incarnation_of
from drumbeat.coordinator.journal.sqlite import SqliteJournal
from drumbeat.coordinator.limits import Limits
from drumbeat.v1 import (
    common_pb2,
    control_pb2_grpc,
    failure_pb2,
    query_pb2,
    query_pb2_grpc,
    session_pb2,
    session_pb2_grpc,
)
from tests.support.status import RunStatus, requests
from tests.support.waiting import MS

# Its poller is one for all loops of this process; made here, it is no leak of a test.
grpc.aio.init_grpc_aio()

DEADLINE_S = 30_000 * MS
"""Far longer than anything here takes; only a failing test waits for it."""

OPEN = "/drumbeat.v1.AgentService/OpenSession"
REPORT = "/drumbeat.v1.AgentService/ReportFailures"


@asynccontextmanager
async def coordinator(
    directory: Path,
    *,
    limits: Limits | None = None,
    policy: Policy | None = None,
    **settings: Any,
) -> AsyncIterator[Client]:
    """Serve in this process, and yield a client of it."""
    config = CoordinatorConfig(port=0, insecure=True, limits=limits or Limits(), **settings)
    served = serving(config, SqliteJournal(directory), policy)
    async with served as (port, _), Client(port) as client:
        yield client


@dataclass(frozen=True, slots=True)
class Refused:
    """How a call ended."""

    code: grpc.StatusCode
    details: str
    reason: str
    """The ``Refusal``, without its prefix; empty if there is none."""
    detail: common_pb2.ErrorDetail = field(default_factory=common_pb2.ErrorDetail, compare=False)

    @classmethod
    def of(cls, error: grpc.aio.AioRpcError) -> Self:
        """Read it from gRPC's error."""
        metadata = {key: value for key, value in error.trailing_metadata() or ()}  # noqa: C416
        if "drumbeat-error-bin" not in metadata:
            return cls(error.code(), error.details() or "", "")
        encoded = metadata["drumbeat-error-bin"]
        assert isinstance(encoded, bytes)
        detail = common_pb2.ErrorDetail.FromString(encoded)
        reason = common_pb2.Refusal.Name(detail.refusal).removeprefix("REFUSAL_")
        return cls(error.code(), error.details() or "", reason, detail)


class Client:
    """One channel to a coordinator, with all its services."""

    def __init__(self, port: int, channel: grpc.aio.Channel | None = None) -> None:
        self.port = port
        self.channel = channel or grpc.aio.insecure_channel(
            f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]
        )
        self.sessions = session_pb2_grpc.AgentServiceStub(self.channel)
        self.control = control_pb2_grpc.ControlServiceStub(self.channel)
        self.runs = query_pb2_grpc.QueryServiceStub(self.channel)
        self.health: Any = health_pb2_grpc.HealthStub(self.channel)
        # Those that nobody else may hold: of an older gRPC such a call ends.
        self.calls: list[object] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.calls.clear()
        await self.channel.close()

    async def run(self, run_id: str = "run") -> RunStatus:
        """Ask for a run."""
        run, agents, events = requests(run_id)
        found = (await self.runs.GetRun(run, timeout=DEADLINE_S)).run
        listed: list[query_pb2.Agent] = []
        while True:
            page = await self.runs.ListAgents(agents, timeout=DEADLINE_S)
            listed += page.agents
            if not (token := page.next_page_token):
                break
            agents.page_token = token
        told = (await self.runs.ListEvents(events, timeout=DEADLINE_S)).events
        return RunStatus(found, listed, list(told))

    async def is_serving(self, service: str = "") -> bool:
        """Ask for the coordinator's health."""
        request = health_pb2.HealthCheckRequest(service=service)
        answer = await self.health.Check(request, timeout=DEADLINE_S)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def raw(self, method: str) -> Raw:
        """Open a call that carries bytes as they are."""
        return Raw(self.channel.stream_stream(method)())

    def agent(self, **identity: Any) -> FakeAgent:
        """Return an agent that has said nothing yet."""
        agent = FakeAgent(self, **identity)
        self.calls.append(agent.call)
        return agent

    async def report(self, *records: failure_pb2.FailureRecord, key: bytes = b"") -> list[bool]:
        """Deliver records of one agent in one stream; return for each whether it was kept."""
        call = self.sessions.ReportFailures()
        kept = []
        for record in records:
            request = session_pb2.ReportFailuresRequest(record=record, incarnation_key=key)
            await call.write(request)
            async with asyncio.timeout(DEADLINE_S):
                answer = await call.read()
            assert isinstance(answer, session_pb2.ReportFailuresResponse), "the stream ended"
            kept.append(answer.kept)
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        return kept


class Raw:
    """A bidirectional call."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def send(self, message: Any) -> None:
        """Say something; an end of the call on the way is for ``refused`` to tell."""
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self.call.write(message)

    async def read(self) -> Any:
        """Return the next answer. Raises ``AioRpcError``, and ``EOFError`` at a clean end."""
        async with asyncio.timeout(DEADLINE_S):
            answer = await self.call.read()
        if answer is grpc.aio.EOF:
            raise EOFError("the call ended without an error")
        return answer

    async def refused(self) -> Refused:
        """Return how the call ended, passing over answers before that."""
        try:
            while True:
                await self.read()
        except grpc.aio.AioRpcError as error:
            return Refused.of(error)


class FakeAgent(Raw):
    """One agent with one session."""

    def __init__(self, client: Client, **identity: Any) -> None:
        super().__init__(client.sessions.OpenSession())
        self.key: bytes = identity.pop("incarnation_key", secrets.token_bytes(32))
        self.fence = common_pb2.Fence(
            run_id=identity.pop("run_id", "run"),
            incarnation=identity.pop("incarnation", None) or incarnation_of(self.key),
        )
        self.beat = session_pb2.Beat(state=session_pb2.GROUP_STATE_IDLE, master_port=4000)
        purpose = session_pb2.RunPurpose(
            run_id=self.fence.run_id, spec=identity.pop("spec", spec())
        )
        self.hello = session_pb2.Hello(
            **{
                "run": purpose,
                "host": "alice",
                "address": "127.0.0.1",
                "role": "default",
                "local_world_size": 1,
                "beat": self.beat,
                "incarnation_key": self.key,
                **identity,
            }
        )

    @property
    def incarnation(self) -> str:
        """Who it is."""
        return self.fence.incarnation

    async def join(self, *, uptime_s: float | None = None) -> Self:
        """Say hello and take the welcome in."""
        await self.say_hello(uptime_s=uptime_s)
        answer = await self.read()
        assert answer.WhichOneof("kind") == "welcome", answer
        self.fence.session_id = answer.welcome.session_id
        return self

    async def say_hello(self, *, uptime_s: float | None = None) -> None:
        """Say hello."""
        uptime = None
        if uptime_s is not None:
            uptime = Duration(nanos=round(uptime_s % 1 * 1e9), seconds=int(uptime_s))
        await self.send(session_pb2.AgentReport(fence=self.fence, hello=self.hello, uptime=uptime))

    async def say(self, state: session_pb2.GroupState.ValueType, **beat: int | bool) -> None:
        """Report an actual state."""
        self.beat.state = state
        for name, value in beat.items():
            setattr(self.beat, name, value)
        await self.send(session_pb2.AgentReport(fence=self.fence, beat=self.beat))

    async def desired(self, kind: str) -> Any:
        """Return the next desired state of this kind, passing over others."""
        while True:
            answer = await self.read()
            if answer.WhichOneof("kind") == "desired" and answer.desired.HasField(kind):
                return getattr(answer.desired, kind)

    async def run(self) -> session_pb2.Assignment:
        """Wait for a round and say that its workers run."""
        assignment: session_pb2.Assignment = await self.desired("run")
        self.fence.round_id = assignment.round_id
        self.beat.master_port += 1
        await self.say(session_pb2.GROUP_STATE_RUNNING, workers_alive=1)
        return assignment

    def failure(self, sequence: int, **fields: Any) -> failure_pb2.FailureRecord:
        """Return a record of this agent."""
        record = failure_pb2.FailureRecord(
            fence=self.fence, sequence=sequence, host=self.hello.host, exit_code=1, **fields
        )
        record.fence.session_id = ""
        record.fence.round_id = self.fence.round_id
        return record


def spec(agents_min: int = 1, agents_max: int = 1, **fields: Any) -> common_pb2.RunSpec:
    """Return what a run is."""
    return common_pb2.RunSpec(
        **{
            "agents_min": agents_min,
            "agents_max": agents_max,
            "join_timeout": Duration(seconds=600),
            "last_call": Duration(seconds=30),
            "shutdown_timeout": Duration(seconds=5),
            "coordinator_grace": Duration(seconds=600),
            **fields,
        }
    )
