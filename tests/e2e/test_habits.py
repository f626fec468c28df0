"""What people do with a command: nohup, Ctrl-Z, folders called as our packages."""

import fcntl
import os
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.waiting import MS

TIMEOUT_S = 20_000 * MS
AGENT = Path(sys.executable).with_name("agent")
WAITS = """\
import signal
signal.signal(signal.SIGUSR1, lambda *_: exit(0))
print("hangup ignored:", signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, flush=True)
while True:
    signal.pause()
"""


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Leave nothing behind, whatever the test found."""
    with process:
        try:
            yield process
        finally:
            process.kill()


def line_with(file: int, text: bytes) -> bytes:
    """Read until the text has come; return all that was read."""
    seen = b""
    while text not in seen:
        got = os.read(file, 65536)
        assert got, seen
        seen += got
    return seen


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "waits.py"
    path.write_text(WAITS)
    return path


def test_a_hangup_that_was_ignored_at_the_start_stays_ignored(script: Path) -> None:
    """By the agent and by its workers: it was started with nohup."""
    command = ["nohup", str(AGENT), "join", str(script)]
    pipe = subprocess.PIPE
    with ended(subprocess.Popen(command, stdout=pipe, stderr=pipe)) as agent:
        assert agent.stdout is not None
        assert b"hangup ignored: True" in line_with(agent.stdout.fileno(), b"\n")
        agent.send_signal(signal.SIGHUP)
        agent.send_signal(signal.SIGUSR1)  # for the worker, which then is done
        assert agent.wait(TIMEOUT_S) == 0


def test_ctrl_z_suspends_nothing_and_says_so(script: Path) -> None:
    """The others would give the agent up, while its workers train on."""
    master, terminal = os.openpty()
    agent = subprocess.Popen(
        [str(AGENT), "join", str(script)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
    )
    os.close(terminal)
    with ended(agent), os.fdopen(master, "rb", buffering=0):
        line_with(master, b"hangup ignored: False")
        os.write(master, b"\x1a")
        line_with(master, b"not suspended")
        os.write(master, b"\x03")
        assert agent.wait(TIMEOUT_S) == 128 + signal.SIGINT


@pytest.fixture
def shadowed(tmp_path: Path) -> Path:
    """A folder of a user with our commands' names in it, and a clone of our repository."""
    (tmp_path / "drumbeat").mkdir()
    for name in ("agent",):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"WHOSE = 'the user, {name}'\n")
    (tmp_path / "coordinator.py").write_text("WHOSE = 'the user, coordinator'\n")
    (tmp_path / "train.py").write_text(
        "import agent, coordinator\nprint(agent.WHOSE, '+', coordinator.WHOSE, flush=True)\n"
    )
    return tmp_path


def test_folders_of_a_user_may_be_called_as_our_commands(shadowed: Path) -> None:
    """With PYTHONPATH=. everything of theirs comes first for Python."""
    run = subprocess.run(
        [AGENT, "join", "--max-restarts", "1", "--tee", "3", "train.py"],
        cwd=shadowed,
        env={**os.environ, "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "the user, agent + the user, coordinator" in run.stdout


def test_the_coordinators_command_starts_beside_such_a_folder(shadowed: Path) -> None:
    run = subprocess.run(
        [AGENT.with_name("coordinator"), "serve", "--help"],
        cwd=shadowed,
        env={**os.environ, "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert "--state-dir" in run.stdout
