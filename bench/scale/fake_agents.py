"""Agents without hosts or workers: real sessions with a real coordinator, many in one process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import random
import resource
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import grpc.aio
from google.protobuf.duration_pb2 import Duration

from drumbeat.access.client import Credentials, Metadata
from drumbeat.agent.core.agent import BEAT_PHASE_MIN
from drumbeat.agent.session.convert import Identity
from drumbeat.coordinator.core.tokens.caller import incarnation_of
from drumbeat.tasks import is_asked_to_end
from drumbeat.v1 import common_pb2, failure_pb2, session_pb2, session_pb2_grpc
from drumbeat.wire.mapping import LOST_TERM_KEY

if TYPE_CHECKING:
    from drumbeat.v1.session_pb2_grpc import AgentServiceAsyncStub

CONNECTING_MAX = 200
BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 1.0  # until the coordinator says another one
ASSIGNED_WITHIN_S = 300.0  # 10,000 on two busy cores
PLAINTEXT = Credentials(tls=None)
# Workers train in step, from this one on.
STEP_FIRST, STEP_TIME_S = 12_345, 0.25
# A connection of its own for every agent, as if each were on a host of its own.
CHANNEL_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.http2.bdp_probe", 0),
)

# Of one worker in the middle of a deep model, with a second thread: some 4 KB.
STACKS = "\n".join(
    f"Thread {number:#x} (most recent call first):\n"
    + "".join(f'  File "/home/user/train/model_{i}.py", line {i} in forward\n' for i in range(40))
    for number in (1, 2)
)

# The thread that trains, of a rank that waits for others and of one that does not.
WAITS = (
    "Thread (most recent call first):\n"
    '  File "/lib/torch/distributed/distributed_c10d.py", line 9 in all_reduce\n'
    + "".join(f'  File "/home/user/train/model_{i}.py", line {i} in forward\n' for i in range(40))
)
LOADS = WAITS.replace("/lib/torch/distributed/distributed_c10d.py", "/home/user/train/data.py")

# gRPC keeps waking each loop that ever served it, so that fleets share one.
_RUNNER = asyncio.Runner()

T = TypeVar("T")
Connect = Callable[[int], grpc.aio.Channel]
Call = grpc.aio.StreamStreamCall[session_pb2.AgentReport, session_pb2.Directive]


def run_spec(count: int) -> common_pb2.RunSpec:
    """Return the spec of a run whose only round has ``count`` agents."""
    return common_pb2.RunSpec(
        agents_min=count,
        agents_max=count,
        restarts_max=1_000,
        join_timeout=Duration(seconds=600),
        last_call=Duration(seconds=30),
        shutdown_timeout=Duration(seconds=30),
        coordinator_grace=Duration(seconds=600),
    )


class FakeAgent:
    """One agent: registers, is given ranks, says that it runs, and beats from then on.

    Asked for stacks, it gives ``STACKS`` for each of its workers at once.
    """

    def __init__(
        self,
        index: int,
        spec: common_pb2.RunSpec,
        run_id: str,
        workers: int = 0,
        *,
        is_with_others: bool = False,
    ) -> None:
        self.beats = 0
        """Written after the hello, on all sessions."""
        self.lease_s = self.interval_s = self._waiting_interval_s = 0.0
        """The latest it was told."""
        self.assigned_at: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        """Done with the monotonic second at which the first assignment came."""
        self.back_at: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        """Done with the one at which the second session was welcomed."""
        self.rounds: set[int] = set()
        """All it was assigned to."""
        self._sessions = 0
        self._term = 0
        self._backoff_s, self._backoff_max_s = BACKOFF_FIRST_S, BACKOFF_MAX_S
        self._is_with_others = is_with_others
        self._index = index
        self._spec = spec
        self._key = secrets.token_bytes(32)
        self._fence = common_pb2.Fence(run_id=run_id, incarnation=incarnation_of(self._key))
        self._beat = session_pb2.Beat(
            state=session_pb2.GROUP_STATE_IDLE, master_port=10_000 + index % 50_000
        )
        self._workers = max(1, workers)
        self._seats: tuple[int, int] = (0, 0)  # rank of the first worker, and all in the world
        self._progress = [progress(local_rank) for local_rank in range(workers)]
        self._has_news = asyncio.Event()
        self._beat_phase = random.uniform(BEAT_PHASE_MIN, 1.0)
        self._next_round: asyncio.Future[float] | None = None
        self._next_standby: asyncio.Future[float] | None = None
        self.is_silent = False
        """Whether it keeps its session and says nothing there."""
        self._released_at: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    @property
    def identity(self) -> Identity:
        """Who it is."""
        return Identity(
            incarnation=self._fence.incarnation, incarnation_key=self._key, host="", term=self._term
        )

    def expect(self) -> tuple[asyncio.Future[float], asyncio.Future[float]]:
        """Return what is done, with the second, at the next assignment and when told to wait."""
        loop = asyncio.get_running_loop()
        self._next_round, self._next_standby = loop.create_future(), loop.create_future()
        return self._next_round, self._next_standby

    def hang(self) -> asyncio.Future[float]:
        """Say at once that a worker hangs and is held.

        Returns what is done with the monotonic second at which it may be killed.
        """
        self._beat.expired.add(
            number=1,
            kind=failure_pb2.HANG_KIND_PROGRESS,
            limit=Duration(seconds=8),
            elapsed=Duration(seconds=8),
            is_held=True,
        )
        self._has_news.set()
        return self._released_at

    def fail(self) -> None:
        """Say at once that a worker has failed."""
        self._beat.state = session_pb2.GROUP_STATE_FAILED
        self._has_news.set()

    async def live(
        self, connect: Connect, metadata: Metadata, connecting: asyncio.Semaphore
    ) -> None:
        """Keep a session, and open a new one after each that ends, until cancelled.

        Each goes to the next address.
        """
        for number in itertools.count():
            known = self._sessions
            lost = ((LOST_TERM_KEY, str(self._term)),) if self._term else ()
            try:
                async with connect(number) as channel:
                    stub: AgentServiceAsyncStub = session_pb2_grpc.AgentServiceStub(channel)
                    await self._hold_session(stub, (*metadata, *lost), connecting)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass  # the call has ended
            except asyncio.CancelledError:
                # A server that is overrun cancels calls, which grpc.aio raises like this.
                if is_asked_to_end():
                    raise
            if self._sessions > known and self._is_with_others:
                continue  # there is another address that was not tried
            await asyncio.sleep(random.uniform(0, self._backoff_s))
            self._backoff_s = min(2 * self._backoff_s, self._backoff_max_s)

    async def _hold_session(
        self, stub: AgentServiceAsyncStub, metadata: Metadata, connecting: asyncio.Semaphore
    ) -> None:
        async with connecting:
            call: Call = stub.OpenSession(metadata=metadata)
            self._fence.session_id = ""
            hello = session_pb2.Hello(
                run=session_pb2.RunPurpose(run_id=self._fence.run_id, spec=self._spec),
                host=f"host-{self._index}",
                address="127.0.0.1",
                role="default",
                local_world_size=self._workers,
                incarnation_key=self._key,
                beat=self._beat,
                features=["stacks"],
                term=self._term,
            )
            await call.write(session_pb2.AgentReport(fence=self._fence, hello=hello))
            first = await call.read()
        if not isinstance(first, session_pb2.Directive):
            return
        self._on_welcome(first.welcome)
        writer = asyncio.create_task(self._write_beats(call))
        try:
            while isinstance(response := await call.read(), session_pb2.Directive):
                if response.HasField("pace"):
                    self._keep(response.pace)
                if response.HasField("end_held") and not self._released_at.done():
                    self._released_at.set_result(time.monotonic())
                if response.desired.HasField("run"):
                    self._run(response.desired.run)
                elif response.desired.HasField("standby"):
                    _note_time(self._next_standby)
                for asked in response.collect.stacks:
                    with contextlib.suppress(grpc.aio.AioRpcError):  # an agent's session goes on
                        await stub.ReportStacks(self._stacks(asked), metadata=metadata)
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    def _on_welcome(self, welcome: session_pb2.Welcome) -> None:
        self._fence.session_id, self._term = welcome.session_id, welcome.term
        self._keep(welcome.pace)
        self._backoff_s = BACKOFF_FIRST_S
        self._sessions += 1
        if self._sessions == 2:
            self.back_at.set_result(time.monotonic())

    def _keep(self, pace: session_pb2.Pace) -> None:
        self._backoff_max_s = pace.reconnect_delay_max.ToTimedelta().total_seconds()
        self.interval_s = pace.heartbeat_interval.ToTimedelta().total_seconds()
        self.lease_s = pace.lease.ToTimedelta().total_seconds()
        self._waiting_interval_s = pace.waiting_interval.ToTimedelta().total_seconds()

    async def _write_beats(self, call: Call) -> None:
        """Write the state at every change and at least every interval; the only writer."""
        is_news = True
        while True:
            with contextlib.suppress(TimeoutError):
                is_waiting = self._beat.state == session_pb2.GROUP_STATE_IDLE
                waiting_s = self._waiting_interval_s if is_waiting else 0.0
                share = self._beat_phase if is_news else 1.0
                async with asyncio.timeout(share * max(self.interval_s, waiting_s)):
                    await self._has_news.wait()
            is_news = self._has_news.is_set()
            self._has_news.clear()
            if self.is_silent:
                continue
            step = STEP_FIRST + int(time.monotonic() / STEP_TIME_S)
            for worker in self._beat.workers:
                worker.step = step
            uptime = Duration()
            uptime.FromNanoseconds(time.monotonic_ns())
            await call.write(
                session_pb2.AgentReport(fence=self._fence, beat=self._beat, uptime=uptime)
            )
            self.beats += 1

    def _run(self, assignment: session_pb2.Assignment) -> None:
        self._fence.round_id = assignment.round_id
        self._seats = assignment.rank_first, assignment.world_size
        is_new = assignment.round_id not in self.rounds
        self.rounds.add(assignment.round_id)
        self._beat.state = session_pb2.GROUP_STATE_RUNNING
        self._beat.workers_alive = self._workers
        del self._beat.workers[:]
        self._beat.workers.extend(self._progress)
        # The coordinator uses each port once: hold another one for the next round.
        self._beat.master_port = 10_000 + (self._beat.master_port + 1) % 50_000
        self._has_news.set()
        _note_time(self.assigned_at)
        _note_time(self._next_standby)  # one that has new ranks by then is not told to wait
        if is_new:  # a new coordinator repeats what holds
            _note_time(self._next_round)

    def _stacks(self, asked: session_pb2.StackRequest) -> session_pb2.ReportStacksRequest:
        if asked.is_evidence:
            return self._evidence(asked)
        return session_pb2.ReportStacksRequest(
            fence=self._fence,
            incarnation_key=self._key,
            request_id=asked.request_id,
            workers=(
                session_pb2.WorkerStacks(local_rank=i, pid=1_000 + i, stacks=STACKS)
                for i in asked.local_ranks
            ),
        )

    def _evidence(self, asked: session_pb2.StackRequest) -> session_pb2.ReportStacksRequest:
        """Say that all workers wait in one place, but the last one of the first agent."""
        message = session_pb2.ReportStacksRequest(
            fence=self._fence, incarnation_key=self._key, request_id=asked.request_id
        )
        last = asked.local_ranks[-1]
        for i in asked.local_ranks:
            worker = message.workers.add(local_rank=i, pid=1_000 + i, progress=self._progress[i])
            worker.progress.heartbeat_age.FromSeconds(8)
            if i == last and self._index == 0:
                worker.stacks = LOADS
            elif i:
                worker.same_as = 0
            else:
                worker.stacks = WAITS
            worker.has_groups = True
            is_missing = i == last and self._index == 0
            worker.groups.extend((int(is_missing), 2, 3 + i))
        first, size = self._seats
        message.groups.extend(process_groups(first, self._workers, size))
        return message


def process_groups(first: int, workers: int, world: int) -> Iterator[session_pb2.ProcessGroupCalls]:
    """Yield the groups of a host: the world with a call that waits and without it, and a mesh."""
    group = session_pb2.ProcessGroupCalls
    yield group(name="0", ranks=f"0-{world - 1}", calls=calls(1042, is_waiting=True))
    yield group(name="0", ranks=f"0-{world - 1}", calls=calls(1041, is_waiting=False))
    host = f"{first}-{first + workers - 1}"
    yield group(name="1", ranks=host, label="mesh_tp", calls=calls(99, is_waiting=False))
    for i in range(workers):
        column = f"{i}-{world - workers + i}:{workers}"
        yield group(name="2", ranks=column, label="mesh_dp", calls=calls(99, is_waiting=False))


def calls(last: int, *, is_waiting: bool) -> Iterator[session_pb2.CollectiveCall]:
    """Yield the latest eight calls of a group, up to this number."""
    for number in range(last - 7, last + 1):
        age = Duration(seconds=41, nanos=(last - number) * 1_000)
        yield session_pb2.CollectiveCall(
            sequence=number,
            op="all_reduce",
            tensors="float32 [25557032]",
            is_done=not is_waiting or number < last,
            age=age,
        )


def progress(local_rank: int) -> failure_pb2.WorkerProgress:
    """Return what a worker in the middle of its training says of itself."""
    return failure_pb2.WorkerProgress(
        local_rank=local_rank,
        step=STEP_FIRST,
        step_time=Duration(nanos=round(STEP_TIME_S * 1e9)),
        heartbeat_age=Duration(nanos=100_000_000),
        runtime_age=Duration(nanos=50_000_000),
        scope="forward",
        scope_age=Duration(nanos=10_000_000),
        scopes_open=1,
    )


class Told(NamedTuple):
    """Beats of a fleet, the longest interval and lease that an agent was told, and all rounds."""

    beats: int
    interval_s: float
    lease_s: float
    rounds: set[int]


class Part(NamedTuple):
    """Agents from this number on, of so many in all."""

    first: int
    of: int


class Fleet:
    """All agents of one run; they leave without a word at the end.

    ``workers`` of each tell where they stand. Of several addresses they take the first, and the
    next one whenever a session ends. They may be a ``part`` of the run's.
    """

    def __init__(
        self,
        address: str | Sequence[str],
        count: int,
        run_id: str = "bench",
        *,
        workers: int = 0,
        credentials: Credentials = PLAINTEXT,
        part: Part | None = None,
    ) -> None:
        self._part = part or Part(first=0, of=count)
        self._addresses = [address] if isinstance(address, str) else list(address)
        self._credentials = credentials
        self._channel_credentials = credentials.channel
        self._options = (*CHANNEL_OPTIONS, *credentials.options)
        self._count = count
        self._run_id = run_id
        self._workers = workers
        self._agents: list[FakeAgent] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._began = 0.0
        self._awaited: list[asyncio.Future[float]] = []  # the next rounds of all
        self._waits: list[asyncio.Future[float]] = []  # the next time that those who speak wait

    async def __aenter__(self) -> Self:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = min(hard, max(soft, 2 * self._count + 1024))
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        spec = run_spec(self._part.of)
        self._agents = [
            FakeAgent(
                index,
                spec,
                self._run_id,
                self._workers,
                is_with_others=len(self._addresses) > 1,
            )
            for index in range(self._part.first, self._part.first + self._count)
        ]
        connecting = asyncio.Semaphore(CONNECTING_MAX)
        self._began = time.monotonic()
        metadata = self._credentials.metadata
        self._tasks = [
            asyncio.create_task(agent.live(self.connect, metadata, connecting))
            for agent in self._agents
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def connect(self, number: int = 0) -> grpc.aio.Channel:
        """Open a connection, which costs the same on this side as on the coordinator's."""
        address = self._addresses[number % len(self._addresses)]
        if self._channel_credentials is None:
            return grpc.aio.insecure_channel(address, self._options)
        return grpc.aio.secure_channel(address, self._channel_credentials, self._options)

    def hang(self) -> asyncio.Future[float]:
        """Have a worker of the last agent hang; as ``FakeAgent.hang``."""
        return self._agents[-1].hang()

    @property
    def beats(self) -> int:
        """Beats that were written so far."""
        return sum(agent.beats for agent in self._agents)

    async def told(self) -> Told:
        """Return what all agents said and were told so far."""
        return Told(
            self.beats,
            max(agent.interval_s for agent in self._agents),
            max(agent.lease_s for agent in self._agents),
            set().union(*(agent.rounds for agent in self._agents)),
        )

    async def time_to_assign(self) -> float:
        """Return the seconds from the first connect to the last assignment.

        Raises:
            TimeoutError: Not all had theirs after ``ASSIGNED_WITHIN_S``.
        """
        return await self.assigned_at() - self._began

    async def time_to_restart(self) -> float:
        """Let a worker fail; return the seconds from then until the last agent is assigned anew.

        Raises:
            TimeoutError: Not all were after ``ASSIGNED_WITHIN_S``.
        """
        await self.expect_rounds()
        began = await self.fail_one()
        return await self.rounds_at() - began

    async def time_to_lose(self) -> tuple[float, float]:
        """Let an agent fall silent; return the seconds until the others wait, and have ranks anew.

        Its session is over by then, and it comes back.

        Raises:
            TimeoutError: Not all were told after ``ASSIGNED_WITHIN_S``.
        """
        await self.expect_rounds()
        began = await self.silence_one()
        waiting_s = await self.waits_at() - began
        await self.speak()
        return waiting_s, await self.rounds_at() - began

    # The same in steps. All instants are monotonic seconds; those of one that is awaited raise
    # ``TimeoutError`` if it has not come after ``ASSIGNED_WITHIN_S``.

    async def assigned_at(self) -> float:
        """Return when the last agent had its first assignment."""
        return await _latest(agent.assigned_at for agent in self._agents)

    async def expect_rounds(self) -> None:
        """Take note of what comes from here on."""
        expected = [agent.expect() for agent in self._agents]
        self._awaited, self._waits = map(list, zip(*expected, strict=True))

    async def fail_one(self) -> float:
        """Let a worker fail; return when."""
        self._agents[len(self._agents) // 2].fail()
        return time.monotonic()

    async def silence_one(self) -> float:
        """Let the last agent fall silent; return when. It is not expected to wait."""
        self._agents[-1].is_silent = True
        self._waits.pop()
        return time.monotonic()

    async def speak(self) -> None:
        """Let the silent one be heard again."""
        self._agents[-1].is_silent = False

    async def waits_at(self) -> float:
        """Return when the last agent was told to wait."""
        return await _latest(self._waits)

    async def rounds_at(self) -> float:
        """Return when the last agent had its next assignment."""
        return await _latest(self._awaited)

    async def all_back_at(self) -> float:
        """Return the monotonic second at which the last agent had its second session.

        Raises:
            TimeoutError: Not all had theirs after ``ASSIGNED_WITHIN_S``.
        """
        return await _latest(agent.back_at for agent in self._agents)


def run(measure: Coroutine[Any, Any, T]) -> T:
    """Return what a measurement with fleets does; all of a process have to run here."""
    # An agent on a host of its own would not look for garbage among all the others: 10,000 of them
    # fell silent for up to 4 s.
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], 1_000_000_000)
    return _RUNNER.run(measure)


def _note_time(event: asyncio.Future[float] | None) -> None:
    if event is not None and not event.done():
        event.set_result(time.monotonic())


async def _latest(instants: Iterable[asyncio.Future[float]]) -> float:
    async with asyncio.timeout(ASSIGNED_WITHIN_S):
        return max(await asyncio.gather(*instants))
