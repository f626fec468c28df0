"""Patterns in the output of real workers: which are ended for them, and which are left alone."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from drumbeat.v1 import failure_pb2, query_pb2
from tests.support.cluster import Agent, Cluster

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("shared_coordinator")]

# Lines of a progress bar, which end with a carriage return alone. What is wrong happens in the
# first life of rank 1, and the second one ends at once.
TRAIN = r"""
import os, signal, sys, time

way = sys.argv[1]
rank, is_first = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
if not is_first:
    raise SystemExit
is_fatal = way.startswith("fatal")
if not is_fatal:
    time.sleep(1.5)  # imports, compiling, loading: more than the limit
for i in range(10):
    if rank == "0" or way != "one rank prints":
        print(f"\r\x1b[32m{i:3}%\x1b[0m| iteration \x1b[1m{i}\x1b[0m", end="", flush=True)
    if not is_fatal:
        time.sleep(0.1)
print()
if way == "talks of other things":
    import worker_sdk
    for i in range(10_000):
        worker_sdk.heartbeat(step=i)
        print("waiting for data" if rank == "1" else f"iteration {i}", flush=True)
        time.sleep(0.05)
if rank == "0":
    raise SystemExit
if way == "silent":
    time.sleep(600)
elif way == "fatal":
    print("E: CUDA error: an illegal memory access was encountered", file=sys.stderr, flush=True)
    time.sleep(600)
elif way == "fatal, and ends well on SIGTERM":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    print("E: CUDA error: an illegal memory access was encountered", flush=True)
    time.sleep(600)
elif way == "hostile":
    for _ in range(300):
        print("a" * 3000 + "b", flush=True)
        time.sleep(0.01)
"""
RULES = (r"--hang-pattern=iteration \d+=1s", "--fatal-pattern", "NCCL error|CUDA error: an illegal")
WAYS_OF_OUTPUT = [(), ("--redirects", "3"), ("--tee", "3")]
IDS = ["plain", "redirects", "tee"]


@pytest.fixture
def train(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return str(path)


def standalone(cluster: Cluster, *arguments: str) -> Agent:
    return cluster.agent("--standalone", "--nproc-per-node", "2", "--max-restarts", "1", *arguments)


@pytest.mark.slow
@pytest.mark.parametrize("where", WAYS_OF_OUTPUT, ids=IDS)
def test_a_worker_that_prints_no_more_is_reported_and_restarted(
    cluster: Cluster, train: str, where: tuple[str, ...]
) -> None:
    agent = standalone(cluster, *RULES, *where, train, "silent")
    assert agent.wait() == 0, agent.log()
    said = agent.stderr
    (elapsed_s,) = re.findall(
        r"no line matched 'iteration \\\\d\+' within (\S+) s \(limit 1 s", said
    )
    assert 1 <= float(elapsed_s) < 3
    assert "rank 1 failed: SIGTERM, ended because it hung; restarting, 1 of 1" in said


@pytest.mark.parametrize("where", WAYS_OF_OUTPUT, ids=IDS)
def test_a_fatal_line_ends_the_round_at_once(
    cluster: Cluster, train: str, where: tuple[str, ...]
) -> None:
    agent = standalone(cluster, *RULES[1:], *where, train, "fatal")
    assert agent.wait() == 0, agent.log()
    line = "E: CUDA error: an illegal memory access was encountered"
    fatal = f"a line of its output matches the fatal pattern '{RULES[2]}': {line}"
    assert f"rank 1 failed: SIGTERM, {fatal}" in agent.stderr


@pytest.mark.slow
def test_all_ranks_are_looked_at_before_a_worker_is_killed(cluster: Cluster, train: str) -> None:
    """Neither other output nor heartbeats are a match; the root cause has the pattern."""
    coordinator = cluster.coordinator()
    how = ("--nproc-per-node", "2", *RULES, train, "talks of other things")
    agent = cluster.agent(*how, coordinator=coordinator)
    assert agent.wait() == 1
    report = coordinator.run(cluster.run_id).verdict.report
    (cause,) = report.root_causes
    assert cause.worker.rank == 1
    assert (cause.hang.kind, cause.hang.scope) == (failure_pb2.HANG_KIND_OUTPUT, r"iteration \d+")
    assert r"no line matched 'iteration \d+' within 1 s" in report.hang.summary
    assert report.hang.kind == failure_pb2.HANG_KIND_OUTPUT


def test_a_fatal_line_is_the_root_cause_whatever_the_exit_code(
    cluster: Cluster, train: str
) -> None:
    coordinator = cluster.coordinator()
    how = ("--nproc-per-node", "2", *RULES, train, "fatal, and ends well on SIGTERM")
    agent = cluster.agent(*how, coordinator=coordinator)
    assert agent.wait() == 1
    (cause,) = coordinator.run(cluster.run_id).verdict.report.root_causes
    assert (cause.worker.rank, cause.exit_code, cause.is_stopped_by_agent) == (1, 0, False)
    assert "fatal pattern 'NCCL error|CUDA error: an illegal': E: CUDA error" in cause.message
    assert "fatal pattern" in cause.explanation


@pytest.mark.slow
@pytest.mark.parametrize("way", ["well", "one rank prints"])
def test_workers_that_print_on_are_left_alone_however_late_they_begin(
    cluster: Cluster, train: str, way: str
) -> None:
    agent = standalone(cluster, *RULES, train, way)
    assert agent.wait() == 0, agent.log()
    assert "worker hangs" not in agent.stderr
    assert "iteration" in agent.stdout


@pytest.mark.slow
def test_a_stream_that_does_not_pass_the_agent_is_named(cluster: Cluster, train: str) -> None:
    agent = standalone(cluster, *RULES, "--stdout-capture", "off", train, "well")
    assert agent.wait() == 0, agent.log()
    assert agent.stderr.count("output not matched") == 1
    assert "stdout: it does not pass the agent: --stdout-capture is off" in agent.stderr


@pytest.mark.slow
def test_a_pattern_that_takes_for_ever_does_not_stop_heartbeats(
    cluster: Cluster, train: str
) -> None:
    """By the lease the agent would be lost after 2.5 s without one."""
    coordinator = cluster.coordinator("--lease", "2.5")
    how = ("--nproc-per-node", "2", "--hang-pattern", "(a+)+$=2s", "--fatal-pattern", "(a|aa)+$")
    agent = cluster.agent(*how, train, "hostile", coordinator=coordinator)
    assert agent.wait() == 0, agent.log()
    run = coordinator.run(cluster.run_id)
    assert run.round_id == 0
    assert not any("lost" in event.reason for event in run.history), run.history
    assert agent.stderr.count("pattern is slow") == 2


@pytest.mark.slow
def test_a_paused_agent_kills_no_worker(cluster: Cluster, train: str) -> None:
    """What workers write meanwhile waits for it."""
    coordinator = cluster.coordinator("--lease", "60")
    agent = cluster.agent(*RULES, train, "well", coordinator=coordinator)
    coordinator.wait_for_run(cluster.run_id, lambda run: run.phase == query_pb2.RUN_PHASE_RUNNING)
    time.sleep(1.7)  # until it prints; what happens before that is not looked at
    os.kill(agent.pid, signal.SIGSTOP)
    try:
        time.sleep(1.5)
    finally:
        os.kill(agent.pid, signal.SIGCONT)
    assert agent.wait() == 0, agent.log()
    assert "worker hangs" not in agent.stderr
