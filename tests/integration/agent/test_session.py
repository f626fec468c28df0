"""The agent's end of a session: however it ends, the agent hears of it."""

import asyncio
import dataclasses
import gc
import os
import socket
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterator,
    KeysView,
    Mapping,
    MutableMapping,
)
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
import structlog
from msgspec.structs import replace

from drumbeat.agent.core.effects import OpenSession
from drumbeat.agent.core.events import Event, SessionLost, SessionWelcomed
from drumbeat.agent.core.model import Beat
from drumbeat.agent.core.watchdog.model import LimitsLearned
from drumbeat.agent.host.file_thread import FileThread
from drumbeat.agent.host.memory.reader import MemoryReader
from drumbeat.agent.host.private_directory import PrivateDirectory
from drumbeat.agent.model.hang import WorkerProgress
from drumbeat.agent.session.access import Access
from drumbeat.agent.session.convert import Identity
from drumbeat.agent.session.grpc_transport import GrpcConnection
from drumbeat.agent.session.log_answers import LogAnswers
from drumbeat.agent.session.session import Session
from drumbeat.agent.session.spool import Spool
from drumbeat.agent.session.transport import TransportError
from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.agent.watchdog.runner import Watchdog
from drumbeat.agent.workers.devices.usage import GpuUsage
from drumbeat.agent.workers.output.kept import KeptOutput
from drumbeat.coordinator.command.answers import perform
from drumbeat.coordinator.command.request import request
from drumbeat.coordinator.errors import CallFailed
from drumbeat.model import GroupState
from drumbeat.v1 import session_pb2
from drumbeat.wire.mapping import CLOCK_KEY, duration
from tests.support.agents import CONFIG
from tests.support.fake_coordinator import DEADLINE_S, PACE, fake_coordinator

BEAT = Beat(
    state=GroupState.IDLE, round_id=None, master_port=4000, failures_written=0, workers_alive=0
)
PROXIES = ("http_proxy", "https_proxy", "grpc_proxy")


class Watched:
    """A watchdog of no workers, that breaks when it is told to."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.limits: Mapping[str, float] = {}
        self.known_pids: dict[int, int] = {}
        self.memory = MemoryReader()
        self.gpus = GpuUsage()
        self.moved_s = 0.0

    def standings(self, _round_id: int | None) -> list[WorkerProgress]:
        if self.error is not None:
            raise self.error
        return []

    def pids(self, _round_id: int | None) -> Mapping[int, int]:
        return self.known_pids

    def suspects(self, _round_id: int | None) -> list[tuple[int, int | None, str]]:
        return []

    def collectives_moved_s(self, _round_id: int | None) -> float:
        return self.moved_s

    def observations(self, _round_id: int | None) -> Mapping[str, tuple[int, float]]:
        return {}

    def feed(self, event: LimitsLearned) -> None:
        self.limits = event.limits


def config_for(coordinator: str) -> AgentConfig:
    program = Program("program", "true")
    return AgentConfig(coordinator=coordinator, run_id="r", program=program, insecure=True)


class Scene:
    """One session with a coordinator."""

    def __init__(self, port: int, spool: Spool) -> None:
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.watched = Watched()
        config = config_for(f"127.0.0.1:{port}")
        identity = Identity(incarnation="i", host="h", address="127.0.0.1", began_at=0.0)
        opening = OpenSession(attempt=1, delay_max_s=0.0, beat=BEAT, address=f"127.0.0.1:{port}")
        watchdog = cast("Watchdog", self.watched)
        logs = LogAnswers("r", identity, KeptOutput(), str)
        self.session = Session(opening, config, identity, self.events.put_nowait, watchdog, logs)
        self.files = FileThread()
        connect = partial(GrpcConnection, Access(config, self.files))
        self.task = asyncio.create_task(self.session.run(connect, spool))

    async def event(self, kind: type[Event]) -> Any:
        """Return the next event, which is of this kind."""
        async with asyncio.timeout(DEADLINE_S):
            event = await self.events.get()
        assert isinstance(event, kind), event
        return event


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    with closing(PrivateDirectory([str(tmp_path)])) as directory:
        identity = Identity(incarnation="i", host="h", began_at=time.monotonic())
        made = Spool(directory, CONFIG, identity)
        yield made
        made.close()


@asynccontextmanager
async def a_session(port: int, spool: Spool) -> AsyncIterator[Scene]:
    scene = Scene(port, spool)
    try:
        yield scene
    finally:
        scene.task.cancel()
        with suppress(asyncio.CancelledError, ValueError):
            await scene.task
        scene.files.close()


async def test_learned_limits_are_read_in_seconds(spool: Spool) -> None:
    async with fake_coordinator() as head, a_session(head.port, spool) as scene:
        session = await head.session()
        await scene.event(SessionWelcomed)
        limits = [
            session_pb2.LearnedLimit(limit=duration(3.0)),
            session_pb2.LearnedLimit(section="save", limit=duration(4.5)),
        ]
        session.say(limits=session_pb2.LearnedLimits(limits=limits))
        session.say(pace=PACE)
        await scene.event(SessionWelcomed)
        assert scene.watched.limits == {"": 3.0, "save": 4.5}


async def test_processes_of_workers_are_told_once_in_a_session(spool: Spool) -> None:
    async with fake_coordinator() as head, a_session(head.port, spool) as scene:
        session = await head.session()
        await scene.event(SessionWelcomed)
        told = []
        known: list[dict[int, int]] = [{}, {1: 8}, {1: 8}, {0: 7}, {0: 7}]
        for alive, scene.watched.known_pids in enumerate(known, 1):
            scene.session.send_beat(replace(BEAT, workers_alive=alive))
            beat = await session.wait_for(partial(_has_alive, alive))
            told.append(list(beat.pids))
        assert told == [[], [0, 8], [], [7, 8], []]


async def test_a_beat_tells_for_how_long_collectives_have_moved(spool: Spool) -> None:
    async with fake_coordinator() as head, a_session(head.port, spool) as scene:
        session = await head.session()
        await scene.event(SessionWelcomed)
        scene.watched.moved_s = 40.0
        scene.session.send_beat(replace(BEAT, round_id=0, workers_alive=1))
        assert (await session.wait_for(partial(_has_alive, 1))).collectives_moved.seconds == 40


async def test_a_beat_tells_what_the_memory_of_the_workers_is_then(spool: Spool) -> None:
    async with fake_coordinator() as head, a_session(head.port, spool) as scene:
        session = await head.session()
        await scene.event(SessionWelcomed)
        scene.watched.known_pids = {1: os.getpid()}
        scene.session.send_beat(replace(BEAT, round_id=0, workers_alive=1))
        memory = (await session.wait_for(partial(_has_alive, 1))).memory
        assert [each.local_rank for each in memory.workers] == [1]
        assert 0 < memory.workers[0].resident_bytes < memory.limit_bytes
        scene.watched.known_pids = {}
        scene.session.send_beat(replace(BEAT, round_id=0, workers_alive=2))
        assert not (await session.wait_for(partial(_has_alive, 2))).HasField("memory")


def _has_alive(workers: int, beat: session_pb2.Beat) -> bool:
    return beat.workers_alive == workers


async def test_an_error_in_what_the_agent_says_is_raised_and_not_taken_for_a_cancel(
    spool: Spool,
) -> None:
    async with fake_coordinator() as head, a_session(head.port, spool) as scene:
        await head.session()
        await scene.event(SessionWelcomed)
        scene.watched.error = ValueError("a beat that cannot be written")
        scene.session.send_beat(BEAT)
        with pytest.raises(ValueError, match="cannot be written"):
            await asyncio.wait_for(asyncio.shield(scene.task), DEADLINE_S)
        assert scene.events.empty()


async def test_a_call_that_the_coordinator_cancels_is_a_lost_session(spool: Spool) -> None:
    """A server that is overrun ends calls as CANCELLED, which grpc.aio raises as a cancel."""

    async def cancel(_request: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await context.read()
        await context.abort(grpc.StatusCode.CANCELLED, "too many at once")

    server = grpc.aio.server()
    handler: Any = grpc.stream_stream_rpc_method_handler(cancel)
    name = session_pb2.DESCRIPTOR.services_by_name["AgentService"].full_name
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(name, {"OpenSession": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with a_session(port, spool) as scene:
            lost = await scene.event(SessionLost)
            assert "cancelled" in lost.reason
            await asyncio.wait_for(scene.task, DEADLINE_S)
    finally:
        await server.stop(0)


async def test_a_failure_stream_that_breaks_on_a_mistake_ends_the_session(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else no record would ever be delivered again."""

    async def broken(_connection: object) -> None:
        raise ValueError("a record that cannot be read")

    monkeypatch.setattr(spool, "deliver", broken)
    async with fake_coordinator() as head, a_session(head.port, spool) as scene:
        with pytest.raises(ValueError, match="cannot be read"):
            await asyncio.wait_for(asyncio.shield(scene.task), DEADLINE_S)


@pytest.mark.slow
async def test_sessions_that_end_leave_nothing_behind_that_asyncio_complains_of(
    spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    gc.collect()  # what tests before this one have left
    caplog.clear()
    for _ in range(3):
        async with fake_coordinator() as head, a_session(head.port, spool) as scene:
            session = await head.session()
            await scene.event(SessionWelcomed)
            scene.session.send_beat(BEAT)
            session.cut()
            await scene.event(SessionLost)
    gc.collect()
    for _ in range(10):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    said = [record.getMessage() for record in caplog.records if record.name == "asyncio"]
    assert [line for line in said if "Task " in line] == []


@pytest.fixture
def dead_proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the environment name a proxy that refuses every connection."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        for name in PROXIES:
            monkeypatch.setenv(name, f"http://127.0.0.1:{holder.getsockname()[1]}")
        for name in ("no_proxy", "no_grpc_proxy"):
            monkeypatch.delenv(name, raising=False)
        yield


@pytest.mark.usefixtures("dead_proxy")
async def test_a_proxy_of_the_environment_is_ignored_unless_asked_for() -> None:
    async with fake_coordinator() as head:
        with closing(FileThread()) as files:
            access = Access(config_for(f"127.0.0.1:{head.port}"), files)
            where = f"127.0.0.1:{head.port}", 0
            assert await answers(GrpcConnection(access, *where)) == ["welcome"]
            with pytest.raises(TransportError, match="unavailable"):
                await answers(GrpcConnection(access, *where, is_proxied=True))


@pytest.mark.usefixtures("dead_proxy")
async def test_the_command_line_ignores_it_as_well() -> None:
    async with fake_coordinator() as head:
        for is_proxied, problem in ((False, "UNIMPLEMENTED"), (True, "cannot be reached")):
            asked = request(
                "reset-limits",
                run_id="r",
                coordinator=f"127.0.0.1:{head.port}",
                use_proxy=is_proxied,
                insecure=True,
            )
            with pytest.raises(CallFailed, match=problem):
                await asyncio.to_thread(perform, asked)


@pytest.mark.parametrize(
    ("clock", "checks", "warnings"),
    [
        (lambda: f"{time.time() - 3600:.3f}", "clock", 1),
        (lambda: f"{time.time() + 60:.3f}", "clock", 1),
        (lambda: f"{time.time() - 3600:.3f}", "disk", 0),
        (lambda: f"{time.time() - 5:.3f}", "clock", 0),
        (lambda: "soon", "clock", 0),
        (lambda: "inf", "clock", 0),
        (lambda: "nan", "clock", 0),
        (None, "clock", 0),
    ],
)
async def test_a_clock_that_is_far_off_is_warned_of_once(
    clock: Callable[[], str] | None, checks: str, warnings: int
) -> None:
    lines, address = await warned(clock, checks)
    assert [line["log_level"] for line in lines] == ["warning"] * warnings
    assert all(line["coordinator"] == address for line in lines)


async def test_metadata_of_an_older_grpc_are_read_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 1.80 its keys were pairs, at which the agent ended with a mistake."""
    monkeypatch.setattr(grpc.aio.Metadata, "keys", KeysView)  # so it was
    lines, _ = await warned(lambda: f"{time.time() - 3600:.3f}", "clock")
    assert len(lines) == 1


async def warned(
    clock: Callable[[], str] | None, checks: str
) -> tuple[list[MutableMapping[str, Any]], str]:
    """Connect twice; return what was logged, and the address of the coordinator."""

    async def welcome(_request: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await context.read()
        await context.send_initial_metadata([] if clock is None else [(CLOCK_KEY, clock())])
        answer = session_pb2.Directive(welcome=session_pb2.Welcome())
        await context.write(answer.SerializeToString())

    server = grpc.aio.server()
    handler: Any = grpc.stream_stream_rpc_method_handler(welcome)
    name = session_pb2.DESCRIPTOR.services_by_name["AgentService"].full_name
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(name, {"OpenSession": handler}),)
    )
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        with closing(FileThread()) as files, structlog.testing.capture_logs() as logged:
            access = Access(
                dataclasses.replace(config_for(address), health_checks=(checks,)), files
            )
            for _ in range(2):
                assert await answers(GrpcConnection(access, address, 0)) == ["welcome"]
    finally:
        await server.stop(0)
    return logged, address


async def answers(connection: GrpcConnection) -> list[str | None]:
    """Say hello; return the kinds of what is answered until the first answer."""
    heard: list[str | None] = []
    has_answer = asyncio.Event()

    async def requests() -> AsyncGenerator[session_pb2.AgentReport, None]:
        yield session_pb2.AgentReport(hello=session_pb2.Hello(host="h"))
        await has_answer.wait()

    def take(response: session_pb2.Directive) -> None:
        heard.append(response.WhichOneof("kind"))
        has_answer.set()

    try:
        async with asyncio.timeout(DEADLINE_S):
            await connection.open(requests(), take)
    finally:
        await connection.close()
    return heard
