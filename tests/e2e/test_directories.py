"""What an agent keeps for itself survives cleaners, and nothing of it stays."""

import contextlib
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.waiting import wait_until_sync

CLEANING = """
import glob, os, shutil, socket, sys
from worker_sdk import heartbeat, record

@record
def main():
    round_ = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if round_:
        with socket.socket(socket.AF_UNIX) as end:
            end.connect(os.environ["DRUMBEAT_WORKER_SOCKET"].removeprefix("unix:"))
        assert os.listdir(os.environ["DRUMBEAT_WORKER_DIR"])
    if round_ < 2:
        for path in glob.glob(os.environ["TMPDIR"] + "/drumbeat*"):
            shutil.rmtree(path)
        raise ValueError(f"cleaned in {round_}")

main()
"""


def left_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if path.name.startswith("drumbeat")]


@pytest.mark.slow
def test_a_cleaner_costs_nothing_but_what_it_took(cluster: Cluster) -> None:
    """Two restarts are there, and two failures need them; the third round has all it needs."""
    script = cluster.directory / "cleaning.py"
    script.write_text(CLEANING)
    agent = cluster.agent("--standalone", "--max-restarts", "2", str(script))
    assert agent.wait() == 0, agent.log()
    # The error was recorded after the directory of its file was gone.
    assert "not watched" not in agent.stderr, agent.log()
    assert agent.stderr.count("ValueError: cleaned in") >= 2
    assert left_in(cluster.directory) == []


CALLING = """
import time
from worker_sdk import heartbeat, record, runtime, timers

@record
def main():
    heartbeat()
    with timers.expires(after=600, scope="all of it"):
        assert runtime.attachment().greeting(30.0) is not None
        print("up", flush=True)
        time.sleep(1000)

main()
"""


@pytest.fixture
def _no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def exposed(directory: Path) -> list[Path]:
    """Return what another user could use if only the directory itself did not keep it away.

    A running agent removes what ended workers leave meanwhile: what is gone is open to no user.
    """
    found = []
    with contextlib.suppress(FileNotFoundError):
        for path in directory.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if path.lstat().st_mode & 0o077:
                    found += [path, *(exposed(path) if path.is_dir() else ())]
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("_no_umask")
def test_nothing_of_a_running_job_is_open_to_other_users(cluster: Cluster) -> None:
    """Whatever the umask: boards, sockets, FIFOs, error files, spooled records, logs."""
    coordinator = cluster.coordinator()
    script = cluster.directory / "calling.py"
    script.write_text(CALLING)
    agent = cluster.agent(
        *("--nproc-per-node", "2", "--max-restarts", "0", "--stderr-capture", "on", str(script)),
        coordinator=coordinator,
        env={"TORCHELASTIC_ENABLE_FILE_TIMER": "1"},
    )
    agent.wait_for_line("up", count=2)
    (root,) = (path for path in cluster.directory.iterdir() if path.name.startswith("drumbeat-"))
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    kinds = {stat.S_IFMT(path.lstat().st_mode) for path in root.rglob("*")}
    assert kinds == {stat.S_IFREG, stat.S_IFDIR, stat.S_IFSOCK, stat.S_IFIFO}
    assert exposed(root) == []
    coordinator.kill()
    agent.wait_for_line("waiting for the coordinator|coordinator lost")
    os.kill(agent.worker_pids()[0], signal.SIGKILL)
    wait_until_sync(lambda: list(root.glob("spool/*/*.record")), 20.0, describe=agent.log)
    assert exposed(root) == []
