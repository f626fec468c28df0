"""Agents without hosts or workers: real sessions with a real coordinator, many in one process."""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import time
import uuid
from typing import TYPE_CHECKING, Self

import grpc.aio
from google.protobuf.duration_pb2 import Duration

from drumbeat.tasks import is_asked_to_end
from drumbeat.v1 import common_pb2, failure_pb2, session_pb2, session_pb2_grpc

if TYPE_CHECKING:
    from drumbeat.v1.session_pb2_grpc import AgentServiceAsyncStub

CONNECTING_MAX = 200
BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 5.0
ASSIGNED_WITHIN_S = 120.0
# A connection of its own for every agent, as if each were on a host of its own.
CHANNEL_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.http2.bdp_probe", 0),
)

Call = grpc.aio.StreamStreamCall[session_pb2.AgentReport, session_pb2.Directive]


def run_spec(count: int) -> common_pb2.RunSpec:
    """Return the spec of a run whose only round has ``count`` agents."""
    return common_pb2.RunSpec(
        agents_min=count,
        agents_max=count,
        restarts_max=3,
        join_timeout=Duration(seconds=600),
        last_call=Duration(seconds=30),
        shutdown_timeout=Duration(seconds=30),
        coordinator_grace=Duration(seconds=600),
    )


class FakeAgent:
    """One agent: registers, is given ranks, says that it runs, and beats from then on."""

    def __init__(self, index: int, spec: common_pb2.RunSpec, run_id: str, workers: int = 0) -> None:
        self.beats = 0
        """Written after the hello, on all sessions."""
        self.lease_s = self.interval_s = 0.0
        """The latest it was told."""
        self.assigned_at: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        """Done with the monotonic second at which the first assignment came."""
        self._index = index
        self._spec = spec
        self._fence = common_pb2.Fence(run_id=run_id, incarnation=uuid.uuid4().hex)
        self._beat = session_pb2.Beat(
            state=session_pb2.GROUP_STATE_IDLE, master_port=10_000 + index % 50_000
        )
        self._workers = max(1, workers)
        self._progress = [progress(local_rank) for local_rank in range(workers)]
        self._has_news = asyncio.Event()

    async def live(self, address: str, connecting: asyncio.Semaphore) -> None:
        """Keep a session, and open a new one after each that ends, until cancelled."""
        ceiling_s = BACKOFF_FIRST_S
        while True:
            try:
                async with grpc.aio.insecure_channel(address, CHANNEL_OPTIONS) as channel:
                    stub: AgentServiceAsyncStub = session_pb2_grpc.AgentServiceStub(channel)
                    await self._hold_session(stub, connecting)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass  # the call has ended
            except asyncio.CancelledError:
                # A server that is overrun cancels calls, which grpc.aio raises like this.
                if is_asked_to_end():
                    raise
            await asyncio.sleep(random.uniform(0, ceiling_s))
            ceiling_s = min(2 * ceiling_s, BACKOFF_MAX_S)

    async def _hold_session(
        self, stub: AgentServiceAsyncStub, connecting: asyncio.Semaphore
    ) -> None:
        async with connecting:
            call: Call = stub.OpenSession()
            self._fence.session_id = ""
            hello = session_pb2.Hello(
                run=session_pb2.RunPurpose(run_id=self._fence.run_id, spec=self._spec),
                host=f"host-{self._index}",
                address="127.0.0.1",
                role="default",
                local_world_size=self._workers,
                beat=self._beat,
            )
            await call.write(session_pb2.AgentReport(fence=self._fence, hello=hello))
            first = await call.read()
        if not isinstance(first, session_pb2.Directive):
            return
        self._fence.session_id = first.welcome.session_id
        self._keep(first.welcome.pace)
        writer = asyncio.create_task(self._write_beats(call))
        try:
            while isinstance(response := await call.read(), session_pb2.Directive):
                if response.HasField("pace"):
                    self._keep(response.pace)
                if response.desired.HasField("run"):
                    self._run(response.desired.run)
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    def _keep(self, pace: session_pb2.Pace) -> None:
        self.interval_s = pace.heartbeat_interval.ToTimedelta().total_seconds()
        self.lease_s = pace.lease.ToTimedelta().total_seconds()

    async def _write_beats(self, call: Call) -> None:
        """Write the state at every change and at least every interval; the only writer."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.interval_s):
                    await self._has_news.wait()
            self._has_news.clear()
            uptime = Duration()
            uptime.FromNanoseconds(time.monotonic_ns())
            await call.write(
                session_pb2.AgentReport(fence=self._fence, beat=self._beat, uptime=uptime)
            )
            self.beats += 1

    def _run(self, assignment: session_pb2.Assignment) -> None:
        self._fence.round_id = assignment.round_id
        self._beat.state = session_pb2.GROUP_STATE_RUNNING
        self._beat.workers_alive = self._workers
        self._beat.workers.extend(self._progress)
        # The coordinator uses each port once: hold another one for the next round.
        self._beat.master_port = 10_000 + (self._beat.master_port + 1) % 50_000
        self._has_news.set()
        if not self.assigned_at.done():
            self.assigned_at.set_result(time.monotonic())


def progress(local_rank: int) -> failure_pb2.WorkerProgress:
    """Return what a worker in the middle of its training says of itself."""
    return failure_pb2.WorkerProgress(
        local_rank=local_rank,
        step=12_345,
        step_time=Duration(nanos=250_000_000),
        heartbeat_age=Duration(nanos=100_000_000),
        runtime_age=Duration(nanos=50_000_000),
        scope="forward",
        scope_age=Duration(nanos=10_000_000),
        scopes_open=1,
    )


class Fleet:
    """All agents of one run; they leave without a word at the end.

    ``workers`` of each tell where they stand.
    """

    def __init__(
        self, address: str, count: int, run_id: str = "bench", *, workers: int = 0
    ) -> None:
        self._address = address
        self._count = count
        self._run_id = run_id
        self._workers = workers
        self._agents: list[FakeAgent] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._began = 0.0

    async def __aenter__(self) -> Self:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = min(hard, max(soft, 2 * self._count + 1024))
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        spec = run_spec(self._count)
        self._agents = [
            FakeAgent(index, spec, self._run_id, self._workers) for index in range(self._count)
        ]
        connecting = asyncio.Semaphore(CONNECTING_MAX)
        self._began = time.monotonic()
        self._tasks = [
            asyncio.create_task(agent.live(self._address, connecting)) for agent in self._agents
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def beats(self) -> int:
        """Beats that were written so far."""
        return sum(agent.beats for agent in self._agents)

    @property
    def lease_s(self) -> float:
        """The longest lease that an agent was told."""
        return max(agent.lease_s for agent in self._agents)

    @property
    def interval_s(self) -> float:
        """The longest heartbeat interval that an agent was told."""
        return max(agent.interval_s for agent in self._agents)

    async def time_to_assign(self) -> float:
        """Return the seconds from the first connect to the last assignment.

        Raises:
            TimeoutError: Not all had theirs after ``ASSIGNED_WITHIN_S``.
        """
        async with asyncio.timeout(ASSIGNED_WITHIN_S):
            instants = await asyncio.gather(*(agent.assigned_at for agent in self._agents))
        return max(instants) - self._began


async def time_to_assign(address: str, count: int) -> float:
    """Return how long ``count`` agents that come at once wait for their ranks, in seconds."""
    async with Fleet(address, count) as fleet:
        return await fleet.time_to_assign()
