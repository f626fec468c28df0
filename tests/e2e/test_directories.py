"""What an agent keeps for itself survives cleaners, and nothing of it stays."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.cluster import Cluster

pytestmark = pytest.mark.e2e

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


@pytest.mark.parametrize("options", [(), ("--tee", "3")])
def test_a_cleaner_costs_nothing_but_what_it_took(
    cluster: Cluster, options: tuple[str, ...]
) -> None:
    """Two restarts are there, and two failures need them; the third round has all it needs."""
    script = cluster.directory / "cleaning.py"
    script.write_text(CLEANING)
    agent = cluster.agent("--standalone", "--max-restarts", "2", *options, str(script))
    assert agent.wait() == 0, agent.log()
    # The error was recorded after the directory of its file was gone.
    assert "not watched" not in agent.stderr, agent.log()
    assert agent.stderr.count("ValueError: cleaned in") >= 2
    if not options:
        assert left_in(cluster.directory) == []


def test_the_error_of_a_worker_arrives_although_its_directory_is_gone(cluster: Cluster) -> None:
    script = cluster.directory / "cleaning.py"
    script.write_text(CLEANING)
    agent = cluster.agent("--standalone", "--stderr-capture", "off", str(script))
    assert agent.wait() == 1
    agent.wait_for_line("message   : ValueError: cleaned in 0")


def test_the_next_agent_removes_what_a_killed_one_left(cluster: Cluster) -> None:
    agent = cluster.agent(
        *("--standalone", "--nproc-per-node", "2"),
        *("--no-python", "sh", "-c", "echo up; exec sleep 1000"),
    )
    agent.wait_for_line("up", count=2)
    agent.send(signal.SIGKILL)
    cluster.wait_until_alone()
    assert left_in(cluster.directory)
    assert cluster.agent("--standalone", "--no-python", "true").wait() == 0
    assert left_in(cluster.directory) == []
