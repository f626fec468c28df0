"""An agent that is pid 1, as in a container."""

import subprocess
import sys

import psutil
import pytest

from tests.support.cluster import Cluster
from tests.support.processes import DEADLINE_S
from tests.support.waiting import wait_until_sync

NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
WORKER = "echo up; until test -e $0; do sleep 0.05; done; exit 3"


def test_it_reaps_strangers_and_has_the_exit_codes_of_its_own_workers(cluster: Cluster) -> None:
    if subprocess.run([*NAMESPACE, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this process may make no namespace of processes")
    go_on = cluster.directory / "go"
    agent = (sys.executable, "-m", "drumbeat.agent", "join", "--standalone", "--no-python")
    process = cluster.command("container", *NAMESPACE, *agent, "sh", "-c", WORKER, str(go_on))
    process.wait_for_line("up")
    (init,) = psutil.Process(process.pid).children()
    enter = ("nsenter", "--target", str(init.pid), "--pid", "--mount")
    # Its child is an orphan at once, and ends as a child of pid 1.
    subprocess.run([*enter, "sh", "-c", "(sleep 0.1; exit 7) & exit 0"], check=True)

    def zombies() -> list[int]:
        return [it.pid for it in init.children() if it.status() == psutil.STATUS_ZOMBIE]

    wait_until_sync(
        lambda: len(init.children()) == 1 and not zombies(), DEADLINE_S, describe=zombies
    )
    go_on.touch()
    assert process.wait() == 1
    assert "exit code 3" in process.stderr
