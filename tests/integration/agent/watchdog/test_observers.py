"""The observer in real interpreters, and the agent's side of it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from drumbeat.agent.core.watchdog.model import WorkerKey
from drumbeat.agent.watchdog import observers as observers_module
from drumbeat.agent.watchdog.observers import OF_WORKER_MAX, Observers
from drumbeat.agent.workers.supervisor.spawner import STARTUP
from tests.support.processes import DEADLINE_S
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KEY = WorkerKey(3, 0)
TOKEN = "secret"
# What a program can see of the way in which it was started.
SHOWN = """
import json, os, sys, threading
print(json.dumps([
    sys.path, sys.argv, sorted({*sys.modules} - {"_socket"}), threading.active_count(),
    __name__, __spec__ is None,
    {k: v for k, v in os.environ.items() if k.startswith("PYTHON")},
    sorted(int(n) for n in os.listdir("/proc/self/fd"))[:3],
]))
"""


@asynccontextmanager
async def observing(place: Path) -> AsyncIterator[Observers]:
    observers = Observers(place, {TOKEN: KEY}.get)
    try:
        yield observers
    finally:
        await observers.close()


def environment(observers: Observers, **more: str) -> dict[str, str]:
    own = {"DRUMBEAT_OBSERVER": str(observers.path), "DRUMBEAT_WORKER_TOKEN": TOKEN}
    return os.environ | {"PYTHONPATH": STARTUP} | own | more


@asynccontextmanager
async def python(
    observers: Observers, program: str, **more: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program),
        env=environment(observers, **more),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def connected(observers: Observers) -> None:
    await wait_until(lambda: observers.is_connected(KEY), DEADLINE_S)


async def test_a_script_that_waits_shows_where(place: Path) -> None:
    program = "import time\ndef load():\n    time.sleep(1000)\nload()\n"
    async with observing(place) as observers, python(observers, program):
        await connected(observers)

        async def is_there() -> bool:
            return b"in load" in await observers.ask(KEY, "stacks", DEADLINE_S)

        async with asyncio.timeout(DEADLINE_S):
            while not await is_there():
                pass
        stacks = await observers.ask(KEY, "stacks", DEADLINE_S)
        assert b"drumbeat_observer" not in stacks  # the thread that answers is left out
        assert await observers.ask(KEY, "calls", DEADLINE_S) == b""  # it has no process groups


def shown(place: Path, env: dict[str, str]) -> str:
    script = place / "shown.py"
    script.write_text(SHOWN)
    argv = (sys.executable, str(script), "--epochs", "3")
    return subprocess.run(argv, env=env, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("own", ["", "/opt/mine"])
async def test_a_program_sees_nothing_of_it(place: Path, own: str) -> None:
    async with observing(place) as observers:
        env = environment(observers)
        plain = {name: value for name, value in env.items() if name != "PYTHONPATH"}
        if own:
            plain["PYTHONPATH"] = own
            env["PYTHONPATH"] = f"{STARTUP}{os.pathsep}{own}"
        observed, usual = await asyncio.gather(
            asyncio.to_thread(shown, place, env), asyncio.to_thread(shown, place, plain)
        )
    assert observed == usual


async def test_the_users_sitecustomize_is_loaded(place: Path) -> None:
    (place / "sitecustomize.py").write_text("import os; os.environ['MINE'] = __file__\n")
    path = f"{STARTUP}{os.pathsep}{place}"
    program = "import os, sys; print(os.environ['MINE'], sys.modules['sitecustomize'].__file__)"
    async with (
        observing(place) as observers,
        python(observers, program, PYTHONPATH=path) as process,
    ):
        output, _ = await process.communicate()
    assert output.decode().split() == [str(place / "sitecustomize.py")] * 2


async def test_a_broken_sitecustomize_of_the_user_breaks_no_start(place: Path) -> None:
    (place / "sitecustomize.py").write_text("1 / 0\n")
    path = f"{STARTUP}{os.pathsep}{place}"
    async with (
        observing(place) as observers,
        python(observers, "print('up')", PYTHONPATH=path) as process,
    ):
        output, _ = await process.communicate()
    assert output == b"up\n"


async def test_a_program_starts_without_an_agent(place: Path) -> None:
    async with observing(place) as observers:
        gone = str(place / "gone")
        async with python(observers, "print('up')", DRUMBEAT_OBSERVER=gone) as process:
            output, _ = await process.communicate()
    assert (output, process.returncode) == (b"up\n", 0)


async def test_processes_of_a_worker_are_not_observed(place: Path) -> None:
    program = (
        "import os, subprocess, sys, time\n"
        "subprocess.run([sys.executable, '-c', 'pass'])\n"
        "if (child := os.fork()) == 0:\n"
        "    os.close(1)\n"
        "    time.sleep(1000)\n"  # a child that outlives the worker
        "print(child, flush=True)\n"
    )
    async with observing(place) as observers, python(observers, program) as process:
        output, _ = await process.communicate()
        try:
            await wait_until(lambda: not observers.is_connected(KEY), DEADLINE_S)
        finally:
            os.kill(int(output), signal.SIGKILL)


async def test_signals_are_for_the_threads_of_the_program(place: Path) -> None:
    """A signal that a program blocks to wait for it does not end it by the observer's thread."""
    program = (
        "import signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
        "print('up', flush=True)\n"
        "print(signal.sigwait([signal.SIGUSR1]).name)\n"
    )
    async with observing(place) as observers, python(observers, program) as process:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"up\n"
        await connected(observers)
        process.send_signal(signal.SIGUSR1)
        assert await process.stdout.readline() == b"SIGUSR1\n"


def a_peer(observers: Observers, hello: bytes = f"{TOKEN}\n".encode()) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(DEADLINE_S)
    peer.connect(str(observers.path))
    peer.sendall(hello)
    return peer


@pytest.mark.parametrize("hello", [b"wrong\n", b"x" * 10_000, b"\xff\n", b"\n"])
async def test_a_stranger_is_let_go(place: Path, hello: bytes) -> None:
    async with observing(place) as observers:
        with a_peer(observers, hello) as peer:
            assert await asyncio.to_thread(hangs_up, peer)
        assert not observers.is_connected(KEY)


def hangs_up(peer: socket.socket) -> bool:
    try:
        return peer.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("header", [b"1 99999999999\n", b"1 -5\n", b"what\n", b"1\n", b"x" * 9_999])
async def test_a_header_that_breaks_the_rules_ends_the_connection(
    place: Path, header: bytes
) -> None:
    async with observing(place) as observers:
        with a_peer(observers) as peer:
            await connected(observers)
            asking = asyncio.create_task(observers.ask(KEY, "stacks", DEADLINE_S))
            assert await asyncio.to_thread(peer.recv, 100) == b"1 stacks\n"
            peer.sendall(header)
            assert await asking == b""
        await wait_until(lambda: not observers.is_connected(KEY), DEADLINE_S)


async def test_an_answer_that_comes_too_late_is_dropped(place: Path) -> None:
    async with observing(place) as observers:
        with a_peer(observers) as peer:
            await connected(observers)
            assert await observers.ask(KEY, "stacks", 0.01) == b""
            peer.sendall(b"1 4\nlate")
            asking = asyncio.create_task(observers.ask(KEY, "stacks", DEADLINE_S))
            await asyncio.sleep(0)
            peer.sendall(b"2 3\nnew")
            assert await asking == b"new"


async def test_a_silent_observer_is_asked_a_few_times_only(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observers_module, "QUESTIONS_MAX", 2)
    async with observing(place) as observers:
        with a_peer(observers):
            await connected(observers)
            waiting = [asyncio.create_task(observers.ask(KEY, "stacks", 30)) for _ in range(2)]
            await asyncio.sleep(0)
            assert await observers.ask(KEY, "stacks", 30) == b""
            assert not any(task.done() for task in waiting)


async def test_of_many_connections_of_one_worker_the_oldest_are_closed(place: Path) -> None:
    async with observing(place) as observers:
        peers = [a_peer(observers) for _ in range(OF_WORKER_MAX + 1)]
        try:
            assert await asyncio.to_thread(hangs_up, peers[0])
            assert observers.is_connected(KEY)
        finally:
            for peer in peers:
                peer.close()


async def test_the_socket_is_for_this_user_alone(place: Path) -> None:
    async with observing(place) as observers:
        assert observers.path.stat().st_mode & 0o777 == 0o600
