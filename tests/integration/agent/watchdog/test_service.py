"""What workers may tell by calls, by a client without the SDK."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from msgspec.structs import replace

from drumbeat.agent.core.events import LimitsExceeded, NoticeAnswered
from drumbeat.agent.core.model import WorkerOrder, WorkerStep
from drumbeat.agent.core.watchdog.model import Report, Signal, WatchdogPolicy, WorkerKey
from drumbeat.agent.host.private_directory import PrivateDirectory
from drumbeat.agent.watchdog.runner import Watchdog
from drumbeat.inprocess import IterationComplete, IterationInterrupt
from drumbeat.wire.mapping import duration
from drumbeat.worker.v1 import iteration_pb2, worker_pb2, worker_pb2_grpc
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
        self.directory = PrivateDirectory()
        self.watchdog = Watchdog(policy, self.directory, self.on_signal, self.on_event, {})
        self.steps: asyncio.Queue[WorkerStep] = asyncio.Queue()
        self.env = self.watchdog.prepare(ROUND, [0])[0]
        self.signals: list[tuple[WorkerKey, int]] = []
        self.signalled = asyncio.Event()

    @property
    def token(self) -> Metadata:
        return (("authorization", f"Bearer {self.env[context.WORKER_TOKEN]}"),)

    def on_signal(self, key: WorkerKey, signum: int) -> None:
        self.signals.append((key, signum))
        self.signalled.set()

    def on_event(
        self, event: Report | Signal | WorkerStep | NoticeAnswered | LimitsExceeded
    ) -> None:
        if isinstance(event, WorkerStep):
            self.steps.put_nowait(event)

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
async def serving(
    policy: WatchdogPolicy | None = None, *, is_started: bool = True
) -> AsyncIterator[Bench]:
    bench = Bench(policy or WatchdogPolicy())
    watchdog = bench.watchdog
    async with grpc.aio.insecure_channel(f"unix:{bench.env[context.WORKER_SOCKET]}") as channel:
        bench.stub = worker_pb2_grpc.WorkerServiceStub(channel)
        if is_started:
            watchdog.started(ROUND, {0: os.getpid()})
        try:
            yield bench
        finally:
            await watchdog.close()
            bench.directory.close()


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
        (("authorization", "Bearer unknown"),),
    ],
)
async def test_only_workers_are_heard(bench: Bench, metadata: Metadata) -> None:
    code, details = await refused(
        bench.stub.Heartbeat(worker_pb2.HeartbeatRequest(), metadata=metadata)
    )
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "token" in details


async def test_no_worker_speaks_for_another_by_what_it_can_see(
    bench: Bench,
) -> None:
    """Names of files, ranks and pids are no secret on a host; the token is in none of them."""
    directory = Path(bench.env[context.WORKER_DIR])
    seen = [directory.name, directory.name.rpartition("-")[2], str(directory), "0", f"{ROUND}-0"]
    seen += [path.name for path in directory.parent.rglob("*")]
    for token in (*seen, str(os.getpid()), bench.env[context.WORKER_TOKEN][:-1]):
        metadata = (("authorization", f"Bearer {token}"),)
        code, _ = await refused(
            bench.stub.Heartbeat(worker_pb2.HeartbeatRequest(), metadata=metadata)
        )
        assert code is grpc.StatusCode.UNAUTHENTICATED, token


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
    assert standing.progress_since == standing.heartbeat_at
    assert bench.watchdog.standings(ROUND + 1) == []
    bench.watchdog.gone(ROUND, 0, 1)
    assert bench.watchdog.standings(ROUND) == [replace(standing, progress_since=None)]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (an_acquire(scope=""), "scope: 0 is given, allowed is 1 to 512 bytes"),
        (an_acquire(scope="é" * 257), "scope: 514 is given"),
        (an_acquire(timeout=None), "timeout: nothing is given"),
        (an_acquire(0.0), "timeout: 0.0 is given"),
        (an_acquire(-1.0), "timeout: -1.0 is given"),
        (
            an_acquire(31 * 24 * 3600.0),
            "allowed is above 0 s and at most a month",
        ),
        (an_acquire(signal=99), "signal: 99 is given, allowed is 1 to 31"),
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
    standing = bench.watchdog._core.workers[WorkerKey(ROUND, 0)].standing()
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


KEY = WorkerKey(ROUND, 0)
EXCEPTION = iteration_pb2.INTERRUPTION_KIND_EXCEPTION
INTERRUPT = WorkerOrder(worker=KEY, iteration=4, kind=IterationInterrupt(reason="rank 7 failed"))
COMPLETE = WorkerOrder(worker=KEY, iteration=5, kind=IterationComplete())
INTERRUPT_MESSAGE = worker_pb2.AttachResponse(
    order=worker_pb2.WorkerOrder(
        iteration=4, interrupt=iteration_pb2.IterationInterrupt(reason="rank 7 failed")
    )
)
COMPLETE_MESSAGE = worker_pb2.AttachResponse(
    order=worker_pb2.WorkerOrder(iteration=5, complete=iteration_pb2.IterationComplete())
)


def completed(iteration: int) -> worker_pb2.AttachRequest:
    step = worker_pb2.WorkerStep(iteration=iteration, completed=worker_pb2.Completed())
    return worker_pb2.AttachRequest(step=step)


async def heard(bench: Bench) -> WorkerStep:
    async with asyncio.timeout(DEADLINE_S):
        return await bench.steps.get()


async def test_a_step_is_handed_on(bench: Bench) -> None:
    stream = await bench.greeted()
    await stream.write(completed(4))
    assert await heard(bench) == WorkerStep(worker=KEY, iteration=4, kind="completed")
    later = worker_pb2.WorkerStep(iteration=4)
    await stream.write(worker_pb2.AttachRequest(step=later))
    await stream.write(completed(5))
    assert (await heard(bench)).iteration == 5, "what is of a later version is passed over"


async def test_a_step_that_cannot_be_ends_the_stream(bench: Bench) -> None:
    stream = await bench.greeted()
    said = iteration_pb2.Interruption(message="x" * 5000, kind=EXCEPTION)
    step = worker_pb2.WorkerStep(interrupted=worker_pb2.Interrupted(interruption=said))
    await stream.write(worker_pb2.AttachRequest(step=step))
    code, details = await refused(stream.read())
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert details.startswith("step.interrupted.interruption.message: 5000 is given")
    assert bench.steps.empty()


async def test_what_a_worker_says_of_another_rank_is_its_own(bench: Bench) -> None:
    stream = await bench.greeted()
    said = iteration_pb2.Interruption(local_rank=7, message="not me", kind=EXCEPTION)
    step = worker_pb2.WorkerStep(interrupted=worker_pb2.Interrupted(interruption=said))
    await stream.write(worker_pb2.AttachRequest(step=step))
    told = await heard(bench)
    assert told.worker == WorkerKey(ROUND, 0)
    assert told.interruption is not None
    assert told.interruption.local_rank == 0


async def test_the_longest_step_fits(bench: Bench) -> None:
    stream = await bench.greeted()
    said = iteration_pb2.Interruption(message="x" * 4096, traceback="y" * 65536, kind=EXCEPTION)
    step = worker_pb2.WorkerStep(interrupted=worker_pb2.Interrupted(interruption=said))
    await stream.write(worker_pb2.AttachRequest(step=step))
    await heard(bench)


async def test_an_order_goes_out_at_once(bench: Bench) -> None:
    stream = await bench.greeted()
    bench.watchdog.order(INTERRUPT)
    assert await stream.read() == INTERRUPT_MESSAGE
    await stream.write(a_sync(1))
    answer = await stream.read()
    assert isinstance(answer, worker_pb2.AttachResponse)
    assert answer.synced.sequence == 1, "and only once"
    bench.watchdog.order(COMPLETE)
    assert await stream.read() == COMPLETE_MESSAGE


async def test_the_latest_order_is_repeated_on_a_new_stream(bench: Bench) -> None:
    first = await bench.greeted()
    bench.watchdog.order(INTERRUPT)
    assert await first.read() == INTERRUPT_MESSAGE
    first.cancel()
    bench.watchdog.order(COMPLETE)
    second = await bench.greeted()
    assert await second.read() == COMPLETE_MESSAGE
    third = await bench.greeted()
    assert await third.read() == COMPLETE_MESSAGE
    third.cancel()


async def test_an_order_is_not_for_those_that_have_not_said_who_they_are(bench: Bench) -> None:
    await bench.greeted()
    stream = bench.attach()
    bench.watchdog.order(INTERRUPT)
    await stream.write(greeting())
    answer = await stream.read()
    assert isinstance(answer, worker_pb2.AttachResponse)
    assert answer.WhichOneof("kind") == "greeted"
    assert await stream.read() == INTERRUPT_MESSAGE


async def test_orders_end_with_their_worker(bench: Bench) -> None:
    stream = await bench.greeted()
    bench.watchdog.order(INTERRUPT)
    assert await stream.read() == INTERRUPT_MESSAGE
    bench.watchdog.gone(ROUND, 0, 0)
    assert (await refused(stream.read()))[0] is grpc.StatusCode.FAILED_PRECONDITION
    bench.watchdog.order(COMPLETE)


async def test_a_worker_may_be_quicker_than_the_news_of_its_start() -> None:
    async with serving(is_started=False) as bench:
        stream = bench.attach()
        await stream.write(greeting())
        await stream.write(completed(4))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await bench.steps.get()
        bench.watchdog.started(ROUND, {0: os.getpid()})
        assert (await heard(bench)).worker == KEY


async def test_a_worker_whose_round_never_starts_is_told_so() -> None:
    async with serving(is_started=False) as bench:
        stream = bench.attach()
        await stream.write(greeting())
        bench.watchdog.stopping(ROUND)
        assert (await refused(stream.read()))[0] is grpc.StatusCode.FAILED_PRECONDITION


async def test_grpc_is_not_started_before_a_call() -> None:
    code = (
        "import asyncio, sys\n"
        "from drumbeat.agent.host.private_directory import PrivateDirectory\n"
        "from drumbeat.agent.watchdog.runner import Watchdog\n"
        "from drumbeat.agent.core.watchdog.model import WatchdogPolicy\n"
        "async def main():\n"
        "    directory = PrivateDirectory()\n"
        "    ignore = lambda *_: None\n"
        "    watchdog = Watchdog(WatchdogPolicy(), directory, ignore, ignore, {})\n"
        "    assert watchdog.prepare(0, [0])[0]\n"
        "    await watchdog.close()\n"
        "    directory.close()\n"
        "asyncio.run(main())\n"
        "import drumbeat.standalone, drumbeat.agent.runtime.driver\n"
        "print('grpc' in sys.modules)\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    output, _ = await process.communicate()
    assert output == b"False\n"


async def test_a_service_that_could_not_start_is_started_for_a_later_call() -> None:
    async with serving() as bench:
        # Where the socket is to be there is something else, as if the disk was full.
        inner = Path(bench.env[context.WORKER_SOCKET]).with_name("grpc")
        inner.mkdir()
        beat = worker_pb2.HeartbeatRequest()
        code, _ = await refused(bench.stub.Heartbeat(beat, metadata=bench.token))
        assert code is grpc.StatusCode.UNAVAILABLE
        inner.rmdir()
        call = bench.stub.Heartbeat(
            beat, metadata=bench.token, wait_for_ready=True, timeout=DEADLINE_S
        )
        assert isinstance(await call, worker_pb2.HeartbeatResponse)
