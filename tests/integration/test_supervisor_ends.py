"""How a supervisor ends, and what its client makes of that, with real processes."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest

from drumbeat.agent.model.messages import (
    KillWorkers,
    StartWorkers,
    WorkerExited,
    WorkersStarted,
    WorkersStopped,
    WorkerStart,
)
from drumbeat.agent.workers.supervisor.client import SupervisorClient
from drumbeat.agent.workers.supervisor.launch import launch_early, take_supervisor
from drumbeat.agent.workers.supervisor.process import Supervisor
from drumbeat.agent.workers.supervisor.process_tree import kill_descendants, list_children
from drumbeat.agent.workers.supervisor.protocol import encode
from tests.support.supervision import (
    Harness,
    Mailbox,
    await_ended,
    running,
    start,
)


@pytest.fixture
def mailbox(tmp_path: Path) -> Iterable[Mailbox]:
    with Mailbox(tmp_path) as box:
        yield box


def test_an_agent_that_ends_ends_a_start_that_waits() -> None:
    """Method: a start that waits for ever, and the signal which the kernel sends."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(encode(start("true", count=2)))
        spawner = _WaitingSpawner(ours)
        Supervisor(theirs, spawner, os.getpid()).run()
    assert spawner.starts == 1


def test_what_an_agent_asked_for_is_not_begun_when_it_has_ended() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.sendall(encode(start("true")))
        ours.close()
        spawner = _WaitingSpawner(ours)
        Supervisor(theirs, spawner, os.getpid()).run()
    assert spawner.starts == 0


class _WaitingSpawner:
    """Starts workers from a file system that does not answer, while the agent ends."""

    def __init__(self, agent: socket.socket) -> None:
        self._agent = agent
        self.starts = 0

    def __call__(self, command: StartWorkers, worker: WorkerStart) -> int:  # noqa: ARG002
        self.starts += 1
        ready_fd, begun_fd = os.pipe()
        self._agent.close()
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGCONT)).start()
        try:
            os.read(ready_fd, 1)
        finally:
            os.close(ready_fd)
            os.close(begun_fd)
        raise AssertionError("it went on")


async def test_only_sigkill_ends_a_supervisor() -> None:
    async with running() as harness:
        harness.start("sleep", "1000")
        await harness.expect(WorkersStarted)
        names = ("INT", "TERM", "HUP", "QUIT", "PIPE", "USR1", "USR2", "ALRM", "TSTP")
        for name in names:
            os.kill(harness.pid, signal.Signals[f"SIG{name}"])
        harness.client.send(KillWorkers())
        await harness.expect(WorkersStopped)
        assert harness.deaths == []


async def test_a_killed_supervisor_takes_its_workers_with_it_and_can_be_replaced() -> None:
    async with running() as harness:
        harness.start("sleep", "1000", count=3)
        [started] = await harness.expect(WorkersStarted)
        fds = [os.pidfd_open(pid) for pid in started.pids.values()]
        os.kill(harness.pid, signal.SIGKILL)
        await harness.until(lambda: bool(harness.deaths))
        assert harness.deaths == [-signal.SIGKILL]
        await_ended(fds)
        harness.client.send(KillWorkers())
        harness.client.forget()
        await harness.client.start()
        harness.start("true", round_id=1)
        await harness.expect(WorkerExited)
        assert harness.deaths == [-signal.SIGKILL]


async def test_nonsense_on_the_socket_ends_the_supervisor_and_its_workers() -> None:
    async with running() as harness:
        harness.start("sleep", "1000")
        [started] = await harness.expect(WorkersStarted)
        harness.client._writer.write(b'["StopWorkers",{"round_id":"zero"}]\n')
        await harness.until(lambda: bool(harness.deaths))
        assert harness.deaths == [1]
        assert not psutil.pid_exists(started.pids[0])


async def test_a_start_beside_living_processes_ends_the_supervisor() -> None:
    async with running() as harness:
        harness.start("sleep", "1000", round_id=0)
        [started] = await harness.expect(WorkersStarted)
        harness.start("sleep", "1000", round_id=1)
        await harness.until(lambda: bool(harness.deaths))
        assert harness.deaths == [1]
        assert len(harness.of(WorkersStarted)) == 1
        assert not psutil.pid_exists(started.pids[0])


async def test_a_supervisor_that_does_not_read_is_killed() -> None:
    async with running() as harness:
        os.kill(harness.pid, signal.SIGSTOP)
        for _ in range(4):
            harness.start("true", env={"BIG": "x" * 10_000_000})
        await harness.until(lambda: bool(harness.deaths))
        assert harness.deaths == [-signal.SIGKILL]


async def test_a_callback_that_raises_costs_neither_supervisor_nor_workers() -> None:
    """Goal: an agent's own mistake is told, once, and not blamed on the supervisor."""
    async with running() as harness:

        def fail() -> None:
            harness.on_next_event = None
            raise RuntimeError("the test's mistake")

        harness.on_next_event = fail
        harness.start("sh", "-c", "exit 3")
        [exited] = await harness.expect(WorkerExited)
        assert exited.exit_code == 3
        assert [str(mistake) for mistake in harness.mistakes] == ["the test's mistake"]
        assert harness.deaths == []


async def test_a_death_whose_callback_raises_is_told_as_a_mistake() -> None:
    mistakes: asyncio.Queue[BaseException] = asyncio.Queue()

    def fail(returncode: int) -> None:
        raise RuntimeError(f"no use for {returncode}")

    client = SupervisorClient(
        on_event=lambda _: None, on_death=fail, on_mistake=mistakes.put_nowait
    )
    await client.start()
    assert client.pid is not None
    os.kill(client.pid, signal.SIGKILL)
    assert str(await mistakes.get()) == "no use for -9"
    await client.close()


async def test_a_supervisor_that_was_started_early_is_the_first() -> None:
    deaths: asyncio.Queue[int] = asyncio.Queue()
    early = len(list_children())
    launch_early()
    assert len(list_children()) == early + 1
    client = SupervisorClient(
        on_event=lambda _: None,
        on_death=deaths.put_nowait,
        on_mistake=lambda _: None,
        launch=take_supervisor,
    )
    pids = set()
    for _ in range(2):
        await client.start()
        assert client.pid is not None
        pids.add(client.pid)
        assert len(list_children()) == early + 1
        os.kill(client.pid, signal.SIGKILL)
        assert await deaths.get() == -signal.SIGKILL
    assert len(pids) == 2
    await client.close()


async def test_a_supervisor_that_talks_nonsense_is_killed() -> None:
    async with running() as harness:
        protocol: Any = harness.client._writer.transport.get_protocol()
        protocol.data_received(b"nonsense\n")
        await harness.until(lambda: bool(harness.deaths))
        assert harness.deaths == [-signal.SIGKILL]
        assert harness.mistakes == []


async def test_close_is_harmless_before_a_start_and_after_a_close() -> None:
    harness = Harness()
    await harness.client.close()
    await harness.client.start()
    await harness.client.close()
    await harness.client.close()
    assert harness.client.pid is None
    assert harness.deaths == []


async def test_a_supervisor_that_does_not_exit_is_killed_on_close() -> None:
    harness = Harness(exit_wait_s=0.2)
    await harness.client.start()
    pid = harness.pid
    harness.start("sleep", "1000")
    [started] = await harness.expect(WorkersStarted)
    worker = os.pidfd_open(started.pids[0])
    os.kill(pid, signal.SIGSTOP)
    await harness.client.close()
    assert not psutil.pid_exists(pid)
    await_ended([worker])
    assert harness.deaths == []


async def test_older_children_of_the_agent_are_spared(mailbox: Mailbox) -> None:
    script = f"sleep 1000 & echo $! > {mailbox.path}; wait"
    process = await asyncio.create_subprocess_exec("sh", "-c", script)
    [grandchild] = [psutil.Process(int(line)) for line in await mailbox.read(1)]
    harness = Harness()
    await harness.client.start()
    os.kill(harness.pid, signal.SIGKILL)
    await harness.until(lambda: bool(harness.deaths))
    assert process.returncode is None
    assert grandchild.status() != psutil.STATUS_ZOMBIE
    grandchild.kill()
    await process.wait()


async def test_an_agents_end_is_noticed_though_a_fork_of_it_holds_its_connection() -> None:
    """Method: the agent's end of the connection is copied, and the client closes."""
    async with running() as harness:
        harness.start("sleep", "1000")
        [started] = await harness.expect(WorkersStarted)
        copy = harness.client._writer.get_extra_info("socket").dup()
        await harness.client.close()
        assert not psutil.pid_exists(started.pids[0])
        copy.close()


async def test_killing_spares_the_excluded_with_all_below_them(mailbox: Mailbox) -> None:
    older = list_children()
    script = f"sleep 1000 & echo $! > {mailbox.path}; wait"
    spared = await asyncio.create_subprocess_exec("sh", "-c", script)
    [grandchild] = [psutil.Process(int(line)) for line in await mailbox.read(1)]
    dying = await asyncio.create_subprocess_exec("sh", "-c", script)
    [below] = [os.pidfd_open(int(line)) for line in await mailbox.read(1)]
    kill_descendants(exclude={*older, spared.pid})
    assert await dying.wait() == -signal.SIGKILL
    await_ended([below])
    assert spared.returncode is None
    grandchild.kill()
    assert await spared.wait() == 0


async def test_a_supervisor_imports_little() -> None:
    code = "import drumbeat.agent.workers.supervisor.process, sys; print(' '.join(sys.modules))"
    out = await asyncio.to_thread(
        subprocess.check_output, [sys.executable, "-P", "-c", code], text=True
    )
    assert not {"asyncio", "grpc", "click", "structlog", "google", "torch"} & set(out.split())
