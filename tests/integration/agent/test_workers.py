"""A host's workers, with a real supervisor and files that may stand still."""

import asyncio
import sys
import tempfile
import threading
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from drumbeat.agent.core import effects as fx
from drumbeat.agent.core.events import (
    Event,
    WorkerExited,
    WorkersStarted,
    WorkersStopped,
    WorkerStartFailed,
)
from drumbeat.agent.host.private_directory import PrivateDirectory
from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.agent.workers import manager as module
from drumbeat.agent.workers.devices.host import HostDevices
from drumbeat.agent.workers.manager import Workers
from drumbeat.agent.workers.output.files import WorkerOutput
from tests.support.agents import an_assignment

START = fx.StartRound(assignment=an_assignment())
STOP = fx.StopWorkers(round_id=0, signum=15, timeout_s=30.0)
STALLED = "--log-dir /logs: the file system did not answer within 0.05 s"


class StalledOutput:
    """Files on a file system of which some calls stand still until ``flow`` is set."""

    rules = None

    def __init__(self, *calls: str) -> None:
        self.flow = threading.Event()
        self.directory = PrivateDirectory([tempfile.gettempdir()])
        self._calls = calls

    def _do(self, call: str) -> None:
        if call in self._calls:
            self.flow.wait()

    def prepare(self, _round_id: int, envs: dict[int, Any]) -> dict[int, tuple[str, str]]:
        self._do("prepare")
        return dict.fromkeys(envs, ("", ""))

    def ended(self, _round_id: int, _local_rank: int) -> tuple[None, str, str]:
        self._do("ended")
        return None, "", ""

    def close(self) -> None:
        self._do("close")
        self.directory.close()


class Host:
    """Workers whose events can be waited for."""

    def __init__(self, output: StalledOutput) -> None:
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.output = output
        self.tasks: set[asyncio.Task[None]] = set()
        config = AgentConfig(
            run_id="run",
            program=Program("program", sys.executable, ("-c", "raise SystemExit(5)")),
            log_dir="/logs",
        )
        self.workers = Workers(
            config,
            cast("WorkerOutput", output),
            HostDevices(),
            self.events.put_nowait,
            on_mistake=self._fail,
            spawn=self._spawn,
        )

    def _fail(self, mistake: BaseException) -> None:
        raise AssertionError("a mistake") from mistake

    def _spawn(self, coroutine: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def next(self) -> Event:
        async with asyncio.timeout(30):
            return await self.events.get()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXAMINE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(module, "PREPARE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(module, "CLOSE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(module, "STALLED_CLOSE_TIMEOUT_S", 0.05)


@pytest.fixture
async def hosts() -> AsyncIterator[list[Host]]:
    made: list[Host] = []
    yield made
    for host in made:
        await host.workers.close()
        host.output.flow.set()
        for task in list(host.tasks):
            task.cancel()


async def started(hosts: list[Host], *stalled: str) -> Host:
    host = Host(StalledOutput(*stalled))
    hosts.append(host)
    await host.workers.start()
    return host


async def test_files_that_stand_still_fail_the_start_of_the_round_and_not_the_agent(
    hosts: list[Host],
) -> None:
    host = await started(hosts, "prepare")
    host.workers.execute(START)
    assert await host.next() == WorkerStartFailed(round_id=0, local_rank=0, message=STALLED)
    host.workers.execute(STOP)
    assert await host.next() == WorkersStopped(round_id=0)


async def test_a_stop_does_not_wait_for_files_and_nothing_is_started_after_it(
    hosts: list[Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PREPARE_TIMEOUT_S", 600.0)
    host = await started(hosts, "prepare")
    host.workers.execute(START)
    host.workers.execute(STOP)
    assert await host.next() == WorkersStopped(round_id=0)
    host.output.flow.set()
    second = fx.StartRound(assignment=an_assignment(1))
    host.workers.execute(second)
    began = await host.next()
    assert isinstance(began, WorkersStarted)
    assert began.round_id == 1


async def test_a_failure_is_told_although_what_the_worker_left_cannot_be_read(
    hosts: list[Host],
) -> None:
    host = await started(hosts, "ended")
    host.workers.execute(START)
    assert isinstance(await host.next(), WorkersStarted)
    exited = await host.next()
    assert isinstance(exited, WorkerExited)
    assert (exited.exit_code, exited.error) == (5, None)
    assert exited.explanation == (
        "its error file and output could not be read: the file system did not answer within 0.05 s"
    )
    host.workers.execute(STOP)
    assert await host.next() == WorkersStopped(round_id=0)


async def test_the_end_does_not_wait_for_files_that_stand_still(hosts: list[Host]) -> None:
    await started(hosts, "close")
