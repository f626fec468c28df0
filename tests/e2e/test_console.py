"""``agent join`` on consoles that take nothing, or that are not there."""

import os
import pty
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.processes import DEADLINE_S

# Fails in the first round, quietly, and succeeds in the second.
FAILS_ONCE = "import os\nos._exit(0 if os.environ['DRUMBEAT_ROUND'] == '1' else 5)\n"
FAILS = "raise ValueError('bo' + chr(7) + 'om')\n"


def join(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "drumbeat.agent", "join", "--standalone", *arguments]


def written(directory: Path, text: str) -> str:
    path = directory / "script.py"
    path.write_text(text)
    return str(path)


def full_pipe() -> tuple[int, int]:
    """Return a pipe that takes nothing more."""
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    for size in (4096, 1):
        try:
            while True:
                os.write(write_fd, b"x" * size)
        except BlockingIOError:
            continue
    os.set_blocking(write_fd, True)
    return read_fd, write_fd


def stopped_terminal() -> tuple[int, int]:
    """Return a terminal that takes nothing more, as after Ctrl-S."""
    master, slave = pty.openpty()
    os.set_blocking(slave, False)
    for size in (512, 1):
        try:
            while True:
                os.write(slave, b"x" * size)
        except BlockingIOError:
            continue
    os.set_blocking(slave, True)
    return master, slave


@pytest.mark.slow
@pytest.mark.parametrize(
    ("console", "script", "code"), [(full_pipe, FAILS, 1), (stopped_terminal, FAILS_ONCE, 0)]
)
def test_a_stalled_console_holds_up_neither_restarts_nor_the_end(
    cluster: Cluster, console: object, script: str, code: int
) -> None:
    assert callable(console)
    held, stderr = console()
    try:
        finished = subprocess.run(
            join("--max-restarts", "1", written(cluster.directory, script)),
            stderr=stderr,
            env=cluster.environment(),
            timeout=DEADLINE_S,
            check=False,
        )
    finally:
        os.close(held)
        os.close(stderr)
    assert finished.returncode == code


def test_an_agent_without_a_coordinator_says_for_whom_it_waits(cluster: Cluster) -> None:
    script = written(cluster.directory, FAILS)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        agent = cluster.agent("--coordinator", address, script)
        agent.wait_for_line(f"waiting for the coordinator at {address}")
        agent.send(signal.SIGINT)
        assert agent.wait() == 130
    assert "Ctrl-C: leaving the run" in agent.stderr
