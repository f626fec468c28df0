"""A coordinator for one job, and a job that TorchX starts with one."""

import os
import socket
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.cluster import Cluster, Process, exit_all
from tests.support.waiting import MS, wait_until_sync

TORCHX = str(Path(sys.executable).with_name("torchx"))
LONG_S = 60_000 * MS
CRASH_ONCE = """
import os, sys
if os.environ["DRUMBEAT_ROUND"] == "0":
    sys.exit(7)
print("trained as", os.environ["RANK"], flush=True)
"""


@pytest.mark.slow
def test_a_coordinator_for_one_job_ends_when_all_runs_have(cluster: Cluster) -> None:
    coordinator = cluster.coordinator("--once")
    first = cluster.job("--nnodes", "1", coordinator=coordinator, run_id="first")
    second = cluster.job("--nnodes", "1", coordinator=coordinator, run_id="second")
    agents = [job.join() for job in (first, second)]
    workers = [job.server.wait_for(1) for job in (first, second)]
    exit_all(workers[0], 0)
    assert agents[0].wait() == 0
    assert coordinator.run("second").run.phase, "it goes on for the second run"
    exit_all(workers[1], 0)
    assert agents[1].wait() == 0
    assert coordinator.process.wait() == 0
    assert "all runs have ended (--once)" in coordinator.process.stderr


def test_it_also_ends_after_a_failure(cluster: Cluster) -> None:
    coordinator = cluster.coordinator("--once")
    job = cluster.job("--nnodes", "1", coordinator=coordinator)
    agent = job.join()
    exit_all(job.server.wait_for(1), 3)
    assert agent.wait() == 1
    assert coordinator.process.wait() == 0


@pytest.mark.slow
def test_runs_that_ended_before_its_start_do_not_end_it(cluster: Cluster) -> None:
    coordinator = cluster.coordinator("--once")
    for run_id in ("before", "after"):
        if not coordinator.process.is_running:
            coordinator.restart()
        job = cluster.job(coordinator=coordinator, run_id=run_id)
        agent = job.join()
        exit_all(job.server.wait_for(1), 0)
        assert agent.wait() == 0
        assert coordinator.process.wait() == 0


def run_job(cluster: Cluster, text: str, *options: str) -> Process:
    """Start `torchx run` with a script of this text on two machines, which are processes here."""
    (cluster.directory / "train.py").write_text(text)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    job = ("drumbeat.ddp", "-j", "2x1", "--port", port, *options, "--script", "train.py")
    run = (TORCHX, "run", "-s", "local_cwd", "--wait", "--log", *job)
    path = f"{Path(TORCHX).parent}:{os.environ['PATH']}"
    return cluster.command("torchx", "env", "-C", str(cluster.directory), *run, env={"PATH": path})


@pytest.mark.slow
def test_torchx_runs_a_job_with_its_own_coordinator(cluster: Cluster) -> None:
    process = run_job(cluster, CRASH_ONCE, "--max_restarts", "1")
    assert process.wait(LONG_S) == 0, process.log()
    for text in ("Job finished: SUCCEEDED", "trained as 0", "trained as 1", "(--once)"):
        assert text in process.stdout + process.stderr


@pytest.mark.slow
def test_a_job_that_fails_ends_all_roles(cluster: Cluster) -> None:
    process = run_job(cluster, "raise SystemExit(7)")
    assert process.wait(LONG_S) != 0
    assert "FAILED" in process.stdout + process.stderr
    assert "exit code 7" in process.stdout + process.stderr


@pytest.mark.slow
def test_ending_torchx_ends_all_roles(cluster: Cluster) -> None:
    process = run_job(cluster, "import time; time.sleep(600)")
    process.wait_for_line("2 workers on 2 agents", LONG_S)
    roles = psutil.Process(process.pid).children(recursive=True)
    assert len(roles) >= 3
    process.terminate()
    process.wait(LONG_S)
    wait_until_sync(lambda: not any(role.is_running() for role in roles), LONG_S)
