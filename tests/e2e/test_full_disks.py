"""Disks without room: of the logs, of which workers fail; of the agent's own files."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster import Cluster

FILLING = """
while True:
    print("x" * 4096, flush=True)
"""

RESTARTING = """
import os
from worker_sdk import inprocess

@inprocess.Wrapper(abort=None)
def train(call: inprocess.CallWrapper = None):
    os.write(1, f"iteration {call.iteration} pid {os.getpid()}\\n".encode())
    if call.iteration == 0:
        raise ValueError("in iteration 0")

train()
"""


def mounting(directory: Path, size: str, then: str = "") -> tuple[str, ...]:
    """Return what has a command see a small file system in ``directory``, ``then`` done."""
    directory.mkdir()
    small = f"mount -t tmpfs -o size={size},mode=700 t {directory} && {then} exec $0 $@"
    prefix = ("unshare", "--mount", "sh", "-c", small)
    if subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this process may mount nothing")
    return prefix


@pytest.mark.parametrize("how", ["--redirects", "--tee"])
def test_the_report_names_a_full_log_directory(cluster: Cluster, how: str) -> None:
    logs = cluster.directory / "logs"
    prefix = mounting(logs, "256k")
    script = cluster.directory / "filling.py"
    script.write_text(FILLING)
    options = ("--standalone", how, "3", "--log-dir", str(logs))
    agent = (sys.executable, "-m", "drumbeat.agent", "join", *options, str(script))
    process = cluster.command("agent", *prefix, *agent)
    assert process.wait() == 1, process.log()
    full = f"the file system of the log directory {logs} is full: 0 bytes and "
    told = [line for line in process.stderr.splitlines() if full in line]
    assert any("log directory full" in line for line in told), process.stderr
    assert any("likely why: " in line for line in told)


def test_workers_restart_in_process_with_a_full_disk(cluster: Cluster) -> None:
    """They are watched from memory. Else each would run the function once, and alone."""
    disk = cluster.directory / "disk"
    prefix = mounting(disk, "64k", f"cat /dev/zero > {disk}/fill 2> /dev/null;")
    script = cluster.directory / "restarting.py"
    script.write_text(RESTARTING)
    agent = (
        sys.executable,
        "-m",
        "drumbeat.agent",
        "join",
        "--standalone",
        "--nproc-per-node",
        "2",
    )
    env = {"XDG_RUNTIME_DIR": str(disk)}
    process = cluster.command("agent", *prefix, *agent, str(script), env=env)
    assert process.wait() == 0, process.log()
    assert "workers watched from a spare directory" in process.stderr, process.log()
    first, again = (
        set(re.findall(rf"iteration {iteration} pid (\d+)", process.stdout)) for iteration in (0, 1)
    )
    assert len(first) == 2, process.log()
    assert first == again, process.log()
    (spare,) = re.findall(r"spare directory: (\S+)", process.stderr)
    assert not Path(spare).exists()
