"""The FIFO of torch's file timers is served: real FIFOs, real processes, torch's own client."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import stat
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from drumbeat.agent.compat import file_timers
from drumbeat.agent.compat.file_timers import FileTimers, requested_path
from drumbeat.agent.core.watchdog.model import (
    Refusal,
    TimerAcquired,
    TimerReleased,
    TooManyTimers,
    WorkerKey,
)
from drumbeat.agent.errors import TimerFileUnusable
from tests.support.waiting import MS, wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

WORKER = WorkerKey(round_id=3, local_rank=1)
WALL = 1_000.0
PID = 2**22 - 1  # free where fewer are allowed, and only looked up in `workers`
SLACK_S = 30.0
START_S = 60_000 * MS
WAIT_S = 10_000 * MS

TORCH_CLIENT = """
import os, sys, time
from torch.distributed.elastic import timer
client = timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"])
print("ready", flush=True)
for command in sys.stdin:
    exec(command)
    print("done", flush=True)
"""
PLAIN_CLIENT = """
import json, os, sys
print("ready", flush=True)
for command in sys.stdin:
    scope, at = command.split()
    fields = dict(pid=os.getpid(), scope_id=scope, expiration_time=float(at), signal=9)
    with open(os.environ["TORCHELASTIC_TIMER_FILE"], "w") as fifo:
        fifo.write(json.dumps(fields) + "\\n")
    print("done", flush=True)
"""


@dataclass(slots=True)
class Scene:
    """A served FIFO, and what came through it."""

    path: Path
    wall: float = WALL
    workers: dict[int, WorkerKey] = field(default_factory=lambda: {PID: WORKER})
    events: list[TimerAcquired | TimerReleased] = field(default_factory=list)
    refusal: Refusal | None = None
    meanwhile: Callable[[], None] | None = None
    """What happens once, as the next event is taken."""
    _timers: FileTimers | None = None

    def open(self) -> None:
        self._timers = FileTimers(
            self.path, self.submit, self.workers.get, wall_clock=lambda: self.wall
        )
        self.timers.resume()

    @property
    def timers(self) -> FileTimers:
        assert self._timers is not None
        return self._timers

    def submit(self, event: TimerAcquired | TimerReleased) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.events.append(event)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()

    def write(self, *lines: bytes) -> None:
        fd = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(fd, b"".join(lines))
        finally:
            os.close(fd)

    async def wait_for(self, count: int) -> list[TimerAcquired | TimerReleased]:
        await wait_until(lambda: len(self.events) >= count, WAIT_S, lambda: self.events)
        return self.events


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    scene = Scene(tmp_path / "fifo")
    scene.open()
    yield scene
    scene.timers.close()


def line(scope: str, at: float, pid: int = PID, signum: int = 9) -> bytes:
    fields = {"pid": pid, "scope_id": scope, "expiration_time": at, "signal": signum}
    return json.dumps(fields).encode() + b"\n"


@asynccontextmanager
async def client(
    script: str, timers: FileTimers, *wrapper: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a client that does as it is told, line by line; see ``tell``."""
    process = await asyncio.create_subprocess_exec(
        *(*wrapper, sys.executable, "-c", script),
        env={**os.environ, **timers.environment},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(START_S):
            assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(WAIT_S):
            await process.wait()


async def tell(process: asyncio.subprocess.Process, command: str) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(command.encode() + b"\n")
    async with asyncio.timeout(START_S):
        assert await process.stdout.readline() == b"done\n"


def acquired(scope: str, timeout_s: float = 60.0, signum: int = 9) -> TimerAcquired:
    return TimerAcquired(worker=WORKER, scope=scope, timeout_s=timeout_s, signal=signum)


def released(scope: str) -> TimerReleased:
    return TimerReleased(worker=WORKER, scope=scope)


def step(at: float = WALL + 60, **fields: int) -> bytes:
    return line("step", at, **fields)


NO_SIGNAL = f"process {PID} named one that this system does not have"
OWN_PID = os.getpid()  # not below a worker


@pytest.mark.parametrize(
    ("lines", "events", "warnings"),
    [
        ([step()], [acquired("step")], []),
        ([step(-1)], [released("step")], []),
        ([step(WALL - 5)], [acquired("step", 0.0)], []),
        *(([step(signum=n)], [acquired("step", signum=n)], []) for n in (0, -1, signal.SIGUSR1)),
        # One that there is not becomes the client's default.
        *(
            ([step(signum=n)], [acquired("step", signum=signal.SIGKILL)], [NO_SIGNAL])
            for n in (32, 33, 65, 2**31 - 1)
        ),
        # Of what was read together only the latest counts.
        (
            [line("a", WALL - 5), line("b", WALL + 1), line("a", -1)],
            [released("a"), acquired("b", 1.0)],
            [],
        ),
        # Once for all that is not understood.
        (
            [b"x" * 10_000 + b"\n", b"garbage\n", b"[]\n", step(-1)],
            [released("step")],
            ["longer than 4096 bytes"],
        ),
        (
            [step(pid=OWN_PID), line("b", WALL + 60, OWN_PID), line("mark", -1)],
            [released("mark")],
            [f"process {OWN_PID} is not below a worker"],
        ),
    ],
)
async def test_a_request_becomes_an_event_or_a_warning(
    scene: Scene, lines: list[bytes], events: list[object], warnings: list[str]
) -> None:
    with capture_logs() as logs:
        scene.write(*lines)
        scene.timers.catch_up()
    assert scene.events == events
    assert [(entry["reason"], entry["log_level"]) for entry in logs] == [
        (warning, "warning") for warning in warnings
    ]


async def test_requests_are_read_as_they_come_and_a_clock_that_is_set_changes_none_of_them(
    scene: Scene,
) -> None:
    scene.write(line("before", WALL + 60))
    await scene.wait_for(1)
    scene.wall += 3600
    scene.write(line("after", scene.wall + 60))
    assert await scene.wait_for(2) == [acquired("before"), acquired("after")]


async def test_no_request_is_overtaken_by_one_that_is_read_as_it_is_passed_on(
    scene: Scene,
) -> None:
    def catch_up() -> None:
        scene.write(line("b", -1))
        scene.timers.catch_up()

    scene.meanwhile = catch_up
    scene.write(line("a", WALL - 5), line("b", WALL + 1))
    scene.timers.catch_up()
    assert scene.events == [acquired("a", 0.0), released("b")]


async def test_the_agent_can_catch_up_before_a_verdict(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_timers, "READ_BYTES", 100)
    scene.write(*(line(f"{number}", -1) for number in range(5)))
    scene.timers.catch_up()
    assert [event.scope for event in scene.events] == ["0", "1", "2", "3", "4"]
    await asyncio.sleep(0)
    assert len(scene.events) == 5


async def test_a_line_may_come_in_pieces(scene: Scene) -> None:
    whole = line("step", WALL + 60)
    scene.write(whole[:10])
    await asyncio.sleep(0)
    scene.write(whole[10:] + line("other", -1)[:5])
    await scene.wait_for(1)
    scene.write(line("other", -1)[5:])
    assert [event.scope for event in await scene.wait_for(2)] == ["step", "other"]


async def test_of_an_endless_line_only_the_beginning_is_kept(scene: Scene) -> None:
    for _ in range(10):
        scene.write(b"x" * file_timers.LINE_BYTES_MAX)
        scene.timers.catch_up()
        assert len(scene.timers._rest) <= file_timers.LINE_BYTES_MAX + 1
    scene.write(b"x\n", line("next", -1))
    scene.timers.catch_up()
    assert scene.events == [released("next")]


async def test_requests_wait_until_their_processes_are_known(scene: Scene) -> None:
    pid = os.getpid()
    scene.timers.pause()
    scene.write(line("early", WALL + 60, pid), line("gone", WALL + 60, pid), line("gone", -1, pid))
    await asyncio.sleep(5 * MS)
    assert scene.events == []
    scene.workers[pid] = WORKER
    scene.timers.resume()
    assert await scene.wait_for(2) == [acquired("early"), released("gone")]


async def test_a_timer_too_many_is_told_once(scene: Scene) -> None:
    with capture_logs() as logs:
        scene.refusal = TooManyTimers("RESOURCE_EXHAUSTED", "1024 timers are open")
        scene.write(line("a", WALL + 60), line("b", WALL + 60))
        scene.timers.catch_up()
    assert [entry["reason"] for entry in logs] == ["1024 timers are open"]


async def test_a_process_that_has_gone_has_no_timers(scene: Scene) -> None:
    process = await asyncio.create_subprocess_exec("true")
    await process.wait()
    with capture_logs() as logs:
        scene.write(line("step", WALL + 60, process.pid), line("mark", -1))
        scene.timers.catch_up()
    assert (scene.events, logs) == ([released("mark")], [])


async def test_timers_of_a_process_below_a_worker_are_its_own(scene: Scene) -> None:
    wrapper = ("sh", "-c", '"$@"; true', "wrapper")
    async with client(PLAIN_CLIENT, scene.timers, *wrapper) as worker:
        scene.workers[worker.pid] = WORKER
        scene.write(line("step", WALL + 60, worker.pid))
        await scene.wait_for(1)
        await tell(worker, f"step {WALL + 60}")
        own, below = await scene.wait_for(2)
        assert isinstance(own, TimerAcquired)
        assert isinstance(below, TimerAcquired)
        assert (own.scope, own.pid, own.worker) == ("step", 0, WORKER)
        assert (below.scope, below.worker) == (f"step (process {below.pid})", WORKER)
        assert below.pid not in (0, worker.pid)
        await tell(worker, "step -1")
        assert (await scene.wait_for(3))[2] == released(below.scope)


async def test_the_fifo_is_private_large_and_removed_at_the_end(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "fifo")
    assert not scene.path.exists()
    scene.open()
    mode = scene.path.stat().st_mode
    assert (stat.S_ISFIFO(mode), stat.S_IMODE(mode)) == (True, 0o600)
    fd = os.open(scene.path, os.O_WRONLY | os.O_NONBLOCK)
    assert fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) >= file_timers.PIPE_BYTES >> 4
    os.close(fd)
    scene.timers.close()
    assert not scene.path.exists()
    scene.timers.close()


async def test_a_fifo_that_an_earlier_agent_left_is_replaced(tmp_path: Path) -> None:
    old, new = Scene(tmp_path / "fifo"), Scene(tmp_path / "fifo")
    old.open()
    new.open()
    old.timers.close()
    try:
        new.write(line("step", -1))
        await new.wait_for(1)
    finally:
        new.timers.close()
    assert old.events == []


@pytest.mark.parametrize("kind", ["file", "link", "no folder"])
async def test_a_path_that_cannot_be_a_fifo_is_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "here"
    if kind == "file":
        path.write_text("precious")
    elif kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path = tmp_path / "missing" / "fifo"
    with pytest.raises(TimerFileUnusable, match=str(path)):
        Scene(path).open()
    assert kind != "file" or path.read_text() == "precious"


def test_timers_are_served_if_the_environment_asks_for_it(tmp_path: Path) -> None:
    named = {"TORCHELASTIC_TIMER_FILE": "/a/b"}
    asked = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
    assert requested_path({}, tmp_path) is None
    assert requested_path(named, tmp_path) is None
    assert requested_path({"TORCHELASTIC_ENABLE_FILE_TIMER": "0"}, tmp_path) is None
    path = requested_path(asked, tmp_path)
    assert path is not None
    assert path.parent == tmp_path
    assert requested_path({**asked, **named}, tmp_path) == Path("/a/b")


async def test_workers_are_told_of_the_fifo(scene: Scene) -> None:
    assert scene.timers.environment == {
        "TORCHELASTIC_ENABLE_FILE_TIMER": "1",
        "TORCHELASTIC_TIMER_FILE": str(scene.path),
    }


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(300)
async def test_torchs_own_client_is_served_even_if_the_reader_was_paused(scene: Scene) -> None:
    """Goal: no BlockingIOError. Method: a burst of pairs, the loop blocked at its beginning."""
    pytest.importorskip("torch")
    scene.wall = time.time()
    async with client(TORCH_CLIENT, scene.timers) as process:
        scene.workers[process.pid] = WORKER
        await tell(process, "client.acquire('one', time.time() + 60)")
        (first,) = await scene.wait_for(1)
        assert isinstance(first, TimerAcquired)
        assert (first.scope, first.signal) == ("one", signal.SIGKILL)
        assert first.timeout_s == pytest.approx(60, abs=SLACK_S)
        await tell(process, "client.release('one')")
        assert (await scene.wait_for(2))[1] == released("one")
        scene.events.clear()

        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(
            b"for i in range(5000): client.acquire(str(i), time.time() + 60);"
            b" client.release(str(i))\n"
        )
        await process.stdin.drain()
        time.sleep(0.05)  # noqa: ASYNC251 - the point
        async with asyncio.timeout(START_S):
            assert await process.stdout.readline() == b"done\n"
        await wait_until(lambda: released("4999") in scene.events, WAIT_S)
    scopes = [event.scope for event in scene.events if isinstance(event, TimerReleased)]
    assert scopes == [str(number) for number in range(5000)]
