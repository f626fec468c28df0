"""A supervisor, its workers and an agent in a process of its own that ends in all ways."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from drumbeat.agent.model.messages import (
    Command,
    StartWorkers,
    StopWorkers,
    SupervisorEvent,
    WorkerExited,
    WorkersStarted,
    WorkersStopped,
)
from drumbeat.agent.workers.supervisor.protocol import Decoder, encode
from tests.support.supervision import (
    DEADLINE_S,
    SLACK,
    Mailbox,
    await_ended,
    start,
)


@pytest.fixture
def mailbox(tmp_path: Path) -> Iterable[Mailbox]:
    with Mailbox(tmp_path) as box:
        yield box


class AgentProcess:
    """An agent in a process of its own; see `tests/support/agent_process.py`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin = process.stdin
        self._stdout = process.stdout

    async def line(self) -> str:
        async with asyncio.timeout(DEADLINE_S):
            return (await self._stdout.readline()).decode().strip()

    async def event(self) -> SupervisorEvent:
        [event] = Decoder[SupervisorEvent](SupervisorEvent).feed(f"{await self.line()}\n".encode())
        return event

    def send(self, command: Command) -> None:
        self._stdin.write(encode(command))

    async def end(self) -> None:
        """Let it end in an orderly way; its output ends when every process is gone."""
        self._stdin.close()
        await self.gone()

    async def gone(self, timeout_s: float = DEADLINE_S) -> bytes:
        async with asyncio.timeout(timeout_s):
            rest = await self._stdout.read()
            await self.process.wait()
        return rest


@asynccontextmanager
async def agent_process() -> AsyncIterator[AgentProcess]:
    script = Path(__file__).parent.parent / "support" / "agent_process.py"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", str(script)),  # modules beside it have names of Python's own
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield AgentProcess(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _daemons(mailbox: Mailbox) -> StartWorkers:
    sleeper = f"'echo $$ > {mailbox.path}; exec sleep 1000'"
    script = f"(setsid sh -c {sleeper} &); trap '' TERM; exec sh -c {sleeper}"
    return start("sh", "-c", script, count=2)


async def test_nothing_outlives_a_killed_agent(mailbox: Mailbox) -> None:
    """Goal: no worker outlives its agent. Method: SIGKILL; workers and daemons hold its output."""
    async with agent_process() as agent:
        await agent.line()
        agent.send(_daemons(mailbox))
        fds = [os.pidfd_open(int(line)) for line in await mailbox.read(4)]
        assert isinstance(await agent.event(), WorkersStarted)
        agent.process.kill()
        await agent.gone(timeout_s=1.0 * SLACK)
        await_ended(fds, timeout_s=0)


async def test_a_stopped_supervisor_goes_on_when_its_agent_is_killed(mailbox: Mailbox) -> None:
    async with agent_process() as agent:
        supervisor = int((await agent.line()).removeprefix("supervisor "))
        agent.send(_daemons(mailbox))
        pids = [int(line) for line in await mailbox.read(4)]
        fds = [os.pidfd_open(pid) for pid in (supervisor, *pids)]
        assert isinstance(await agent.event(), WorkersStarted)
        os.kill(supervisor, signal.SIGSTOP)
        agent.process.kill()
        await_ended(fds)


async def test_a_killed_supervisors_daemons_are_ended_by_the_agent(mailbox: Mailbox) -> None:
    async with agent_process() as agent:
        pid = int((await agent.line()).removeprefix("supervisor "))
        agent.send(_daemons(mailbox))
        pids = [int(line) for line in await mailbox.read(4)]
        assert isinstance(await agent.event(), WorkersStarted)
        os.kill(pid, signal.SIGKILL)
        assert await agent.line() == "death -9"
        assert not [pid for pid in pids if psutil.pid_exists(pid)]
        assert (await agent.line()).startswith("supervisor ")
        agent.send(start("true", round_id=1))
        assert isinstance(await agent.event(), WorkersStarted)
        assert isinstance(await agent.event(), WorkerExited)
        await agent.end()
        assert agent.process.returncode == 0


async def test_a_closing_agent_ends_everything(mailbox: Mailbox) -> None:
    async with agent_process() as agent:
        await agent.line()
        agent.send(_daemons(mailbox))
        pids = [int(line) for line in await mailbox.read(4)]
        await agent.end()
        assert not [pid for pid in pids if psutil.pid_exists(pid)]


async def test_a_terminals_interrupt_reaches_only_the_agent(mailbox: Mailbox) -> None:
    script = f"trap 'exit 7' INT; echo up > {mailbox.path}; sleep 1000 & wait"
    async with agent_process() as agent:
        await agent.line()
        agent.send(start("sh", "-c", script))
        await mailbox.read(1)
        assert isinstance(await agent.event(), WorkersStarted)
        os.killpg(agent.process.pid, signal.SIGINT)
        assert await agent.line() == "interrupted"
        agent.send(StopWorkers(round_id=0, signum=signal.SIGTERM, timeout_s=60))
        exited = await agent.event()
        assert isinstance(exited, WorkerExited)
        assert exited.exit_code == -signal.SIGTERM
        assert isinstance(await agent.event(), WorkersStopped)
        await agent.end()
