"""What workers may tell by calls, by a client without the SDK."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from agent.convert import duration
from agent.watchdog.host import Watchdog
from agent.watchdog.model import WatchdogPolicy, WorkerKey
from drumbeat.v1 import worker_pb2, worker_pb2_grpc
from tests.support.board_writer import BoardWriter
from worker_sdk import context

# What the library shares among all its users lives for longer than one test.
grpc.aio.init_grpc_aio()

DEADLINE_S = 20.0
ROUND = 3

Metadata = tuple[tuple[str, str], ...]
Stream = grpc.aio.StreamStreamCall[worker_pb2.AttachRequest, worker_pb2.AttachResponse]


class Bench:
    """A watchdog with one worker, and a way to its service."""

    stub: worker_pb2_grpc.WorkerServiceAsyncStub

    def __init__(self, policy: WatchdogPolicy) -> None:
        self.watchdog = Watchdog(policy, self.on_signal)
        self.env = self.watchdog.prepare(ROUND, [0])[0]
        self.signals: list[tuple[WorkerKey, int]] = []
        self.signalled = asyncio.Event()

    @property
    def token(self) -> Metadata:
        return (("authorization", f"Bearer {self.env[context.WORKER_TOKEN]}"),)

    def on_signal(self, key: WorkerKey, signum: int) -> None:
        self.signals.append((key, signum))
        self.signalled.set()

    def attach(self) -> Stream:
        return self.stub.Attach(metadata=self.token, timeout=DEADLINE_S)

    async def greeted(self) -> Stream:
        stream = self.attach()
        await stream.write(greeting())
        answer = await stream.read()
        assert isinstance(answer, worker_pb2.AttachResponse)
        assert answer.WhichOneof("kind") == "greeted"
        return stream


@asynccontextmanager
async def serving(policy: WatchdogPolicy | None = None) -> AsyncIterator[Bench]:
    bench = Bench(policy or WatchdogPolicy())
    watchdog = bench.watchdog
    async with grpc.aio.insecure_channel(f"unix:{bench.env[context.WORKER_SOCKET]}") as channel:
        bench.stub = worker_pb2_grpc.WorkerServiceStub(channel)
        watchdog.started(ROUND, {0: os.getpid()})
        try:
            yield bench
        finally:
            await watchdog.close()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with serving() as made:
        yield made


def greeting(pid: int = 1) -> worker_pb2.AttachRequest:
    return worker_pb2.AttachRequest(greeting=worker_pb2.Greeting(pid=pid))


def a_sync(sequence: int) -> worker_pb2.AttachRequest:
    return worker_pb2.AttachRequest(sync=worker_pb2.Sync(sequence=sequence))


def an_acquire(timeout_s: float = 60.0, **more: object) -> worker_pb2.AcquireTimerRequest:
    given = {"scope": "s", "timeout": duration(timeout_s)} | more
    return worker_pb2.AcquireTimerRequest(**given)  # type: ignore[arg-type]


async def refused(call: object) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]
    return caught.value.code(), caught.value.details() or ""


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", ""),),
        (("authorization", "Basic abc"),),
        (("authorization", "Bearer "),),
        (("authorization", "Bearer nobodys"),),
    ],
)
async def test_only_workers_are_heard(bench: Bench, metadata: Metadata) -> None:
    code, details = await refused(
        bench.stub.Heartbeat(worker_pb2.HeartbeatRequest(), metadata=metadata)
    )
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "token" in details


async def test_a_timer_that_is_not_released_ends_the_worker(bench: Bench) -> None:
    await bench.stub.AcquireTimer(an_acquire(0.2, signal=10), metadata=bench.token)
    async with asyncio.timeout(DEADLINE_S):
        await bench.signalled.wait()
    assert bench.signals == [(WorkerKey(ROUND, 0), 10)]
    hang = bench.watchdog.gone(ROUND, 0, -10)
    assert hang is not None
    assert (hang.scope, hang.limit_s) == ("s", 0.2)


async def test_a_released_timer_is_forgotten(bench: Bench) -> None:
    await bench.stub.AcquireTimer(an_acquire(0.2), metadata=bench.token)
    await bench.stub.AcquireTimer(an_acquire(0.4, scope="later", signal=10), metadata=bench.token)
    for _ in range(2):
        await bench.stub.ReleaseTimer(
            worker_pb2.ReleaseTimerRequest(scope="s"), metadata=bench.token
        )
    async with asyncio.timeout(DEADLINE_S):
        await bench.signalled.wait()
    assert bench.signals == [(WorkerKey(ROUND, 0), 10)]


async def test_a_heartbeat_is_where_the_worker_stands(bench: Bench) -> None:
    assert bench.watchdog.standings(ROUND) == []
    await bench.stub.Heartbeat(worker_pb2.HeartbeatRequest(step=41), metadata=bench.token)
    [standing] = bench.watchdog.standings(ROUND)
    assert (standing.local_rank, standing.step) == (0, 41)
    assert bench.watchdog.standings(ROUND + 1) == []
    bench.watchdog.gone(ROUND, 0, 1)
    assert bench.watchdog.standings(ROUND) == [standing]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (an_acquire(scope=""), "scope: has 0 bytes"),
        (an_acquire(scope="é" * 257), "scope: has 514 bytes"),
        (an_acquire(timeout=None), "timeout: is missing"),
        (an_acquire(0.0), "timeout: 0 s"),
        (an_acquire(-1.0), "timeout: -1 s"),
        (an_acquire(31 * 24 * 3600.0), "timeout: "),
        (an_acquire(signal=99), "signal: 99"),
    ],
)
async def test_a_timer_that_cannot_be_is_refused(
    bench: Bench, request_: worker_pb2.AcquireTimerRequest, said: str
) -> None:
    code, details = await refused(bench.stub.AcquireTimer(request_, metadata=bench.token))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert said in details


async def test_a_worker_may_have_so_many_timers() -> None:
    async with serving(WatchdogPolicy(timers_max=1)) as bench:
        for _ in range(2):
            await bench.stub.AcquireTimer(an_acquire(), metadata=bench.token)
        call = bench.stub.AcquireTimer(an_acquire(scope="other"), metadata=bench.token)
        code, details = await refused(call)
    assert (code, details) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "1 timers are open")


async def test_messages_are_bounded(bench: Bench) -> None:
    call = bench.stub.AcquireTimer(an_acquire(scope="x" * 100_000), metadata=bench.token)
    code, _ = await refused(call)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_worker_that_has_ended_says_nothing(bench: Bench) -> None:
    stream = await bench.greeted()
    bench.watchdog.gone(ROUND, 0, 0)
    assert (await refused(stream.read()))[0] is grpc.StatusCode.FAILED_PRECONDITION
    beat = worker_pb2.HeartbeatRequest()
    code, _ = await refused(bench.stub.Heartbeat(beat, metadata=bench.token))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    token = bench.token
    bench.watchdog.prepare(ROUND + 1, [0])
    bench.watchdog.started(ROUND + 1, {0: os.getpid()})
    code, _ = await refused(bench.stub.Heartbeat(beat, metadata=token))
    assert code is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_sync_is_answered_once_the_board_is_read(bench: Bench) -> None:
    stream = await bench.greeted()
    writer = BoardWriter(bench.watchdog._workers[WorkerKey(ROUND, 0)].board.directory)
    writer.claim(os.getpid(), HEARTBEATS=1, STEP=7, HEARTBEAT_AT=1)
    await stream.write(a_sync(5))
    answer = await stream.read()
    assert answer == worker_pb2.AttachResponse(synced=worker_pb2.Synced(sequence=5))
    standing = bench.watchdog._core.standing(WorkerKey(ROUND, 0))
    assert standing is not None
    assert standing.step == 7
    await stream.write(a_sync(3))
    answer = await stream.read()
    assert answer == worker_pb2.AttachResponse(synced=worker_pb2.Synced(sequence=5))
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF
    writer.close()


async def test_a_later_stream_takes_the_place_of_an_earlier(bench: Bench) -> None:
    first = await bench.greeted()
    second = await bench.greeted()
    assert (await refused(first.read()))[0] is grpc.StatusCode.ABORTED
    await second.write(a_sync(1))
    answer = await second.read()
    assert isinstance(answer, worker_pb2.AttachResponse)
    assert answer.synced.sequence == 1


@pytest.mark.parametrize("first", [a_sync(1), greeting(pid=0), worker_pb2.AttachRequest()])
async def test_a_stream_begins_with_a_greeting(
    bench: Bench, first: worker_pb2.AttachRequest
) -> None:
    stream = bench.attach()
    await stream.write(first)
    assert (await refused(stream.read()))[0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_grpc_is_not_started_for_nobody() -> None:
    code = (
        "import asyncio, sys\n"
        "from agent.watchdog.host import Watchdog\n"
        "from agent.watchdog.model import WatchdogPolicy\n"
        "async def main():\n"
        "    watchdog = Watchdog(WatchdogPolicy(), lambda *_: None)\n"
        "    assert watchdog.prepare(0, [0])[0]\n"
        "    await watchdog.close()\n"
        "asyncio.run(main())\n"
        "import standalone.embedded, agent.driver\n"
        "print('grpc' in sys.modules)\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    output, _ = await process.communicate()
    assert output == b"False\n"
