"""Real agents: ranks by label, whole blocks, and a preflight that leaves a host out."""

import re
import sys
from pathlib import Path

import pytest

from drumbeat.v1.session_pb2 import GroupState
from tests.support.cluster import ROOT, Agent, Cluster, exit_all

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("shared_coordinator")]

TRAIN = """
import os
print("trained as", os.environ["RANK"], "of", os.environ["WORLD_SIZE"],
      "restart", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
"""
CHECK = """
import os, sys
print("checked as", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
if os.environ["RANK"] == "0":
    print(sys.argv[1], flush=True)
"""
# One worker names a host at once, the others wait for a file.
WAITING_CHECK = """
import os, pathlib, sys, time
if os.environ["RANK"] == "1":
    print("drumbeat: exclude 2: slow", flush=True)
else:
    while not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.05)
"""
EXAMPLE = ROOT / "examples" / "preflight_bandwidth.py"


def train(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return str(path)


def check(tmp_path: Path, last_line: str) -> tuple[str, str]:
    path = tmp_path / "check.py"
    path.write_text(CHECK)
    return "--preflight", f"{sys.executable} {path} '{last_line}'"


def trained(agents: list[Agent]) -> list[str]:
    return sorted(line for agent in agents for line in re.findall(r"trained as .*", agent.stdout))


@pytest.mark.slow
def test_hosts_of_a_rack_get_neighbouring_ranks_whatever_their_order(cluster: Cluster) -> None:
    job = cluster.job("--nnodes", "4", "--rank-order", "rack")
    racks = ("b", "a", "b", "a")
    agents = job.join_in_order(*(("--labels", f"rack={rack}") for rack in racks))
    workers = job.server.wait_for(4)
    rack_of = {
        pid: rack for agent, rack in zip(agents, racks, strict=True) for pid in agent.worker_pids()
    }
    by_rank = [rack_of[worker.pid] for worker in sorted(workers, key=lambda each: each.rank)]
    assert by_rank in (list("aabb"), list("bbaa")), by_rank
    exit_all(workers)
    assert [agent.wait() for agent in agents] == [0] * 4


@pytest.mark.slow
def test_only_whole_blocks_train(cluster: Cluster) -> None:
    job = cluster.job("--nnodes", "2:4", "--block-label", "rack", "--block-size", "2")
    alone = job.join("--labels", "rack=a")
    alone.wait_for_line("0 of 2 agents, block a waits for 1")
    others = [job.join("--labels", "rack=b") for _ in range(2)]
    workers = job.server.wait_for(2)
    pids = {pid for agent in others for pid in agent.worker_pids()}
    assert {worker.pid for worker in workers} == pids
    exit_all(workers)
    assert [agent.wait() for agent in (alone, *others)] == [0] * 3


@pytest.mark.slow
def test_a_host_that_the_preflight_names_does_not_train(cluster: Cluster, tmp_path: Path) -> None:
    how = ("--nnodes", "2:3", "--last-call", "10m", *check(tmp_path, "drumbeat: exclude 1: slow"))
    coordinator = cluster.coordinator()
    agents = [
        cluster.agent(*how, "--name", name, train(tmp_path), coordinator=coordinator)
        for name in ("one", "two", "three")
    ]
    assert [agent.wait() for agent in agents] == [0] * 3, agents[0].log()
    checked = [re.search(r"checked as (\d) of 3", agent.stdout) for agent in agents]
    assert sorted(found[1] for found in checked if found) == ["0", "1", "2"]
    excluded = [
        agent for agent, found in zip(agents, checked, strict=True) if found and found[1] == "1"
    ]
    assert trained(excluded) == []
    assert trained(agents) == [f"trained as {rank} of 2 restart 0" for rank in range(2)]
    run = coordinator.run(cluster.run_id)
    assert (run.restart_count, run.round_id, run.verdict.is_success) == (0, 1, True)
    told = [event.reason for event in run.history]
    assert any("preflight left out 1 of 3 agents" in reason for reason in told), told
    assert any("rank 1: slow" in reason for reason in told), told


@pytest.mark.slow
def test_a_preflight_that_leaves_too_few_ends_the_run(cluster: Cluster, tmp_path: Path) -> None:
    how = ("--nnodes", "2", *check(tmp_path, "drumbeat: exclude 0,1: both slow"))
    coordinator = cluster.coordinator()
    agents = [cluster.agent(*how, train(tmp_path), coordinator=coordinator) for _ in range(2)]
    assert all(agent.wait() != 0 for agent in agents)
    assert trained(agents) == []
    assert "0 are left of at least 2" in agents[0].stderr + agents[1].stderr


def test_a_label_that_is_not_there_is_named_with_those_that_are(cluster: Cluster) -> None:
    address = ("--coordinator", "127.0.0.1:1", "--run-id", "r", "--rank-order", "switch")
    agent = cluster.agent(*address, "--labels", "rack=a,zone=b", "train.py")
    assert agent.wait() == 2
    assert "switch" in agent.stderr
    assert "labels that have a value here: rack, zone" in agent.stderr
    assert "Traceback" not in agent.stderr


@pytest.mark.slow
def test_a_coordinator_killed_amid_the_preflight_forgets_nobody_that_was_named(
    cluster: Cluster, tmp_path: Path
) -> None:
    path, go = tmp_path / "check.py", tmp_path / "go"
    path.write_text(WAITING_CHECK)
    command = f"{sys.executable} {path} {go}"
    how = ("--nnodes", "2:3", "--last-call", "10m", "--preflight", command, train(tmp_path))
    coordinator = cluster.own_coordinator()
    agents = [cluster.agent(*how, coordinator=coordinator) for _ in range(3)]
    coordinator.wait_for_run(
        cluster.run_id,
        lambda run: GroupState.Value("GROUP_STATE_SUCCEEDED") in [a.state for a in run.agents],
    )
    coordinator.kill()
    for agent in agents:
        agent.wait_for_line("coordinator lost")
    coordinator.restart()
    go.touch()
    assert [agent.wait() for agent in agents] == [0] * 3, agents[0].log()
    assert trained(agents) == [f"trained as {rank} of 2 restart 0" for rank in range(2)]
    told = [event.reason for event in coordinator.run(cluster.run_id).history]
    assert any("rank 2: slow" in reason for reason in told), told


@pytest.mark.slow
@pytest.mark.torch
def test_the_example_leaves_out_a_slow_host(cluster: Cluster, tmp_path: Path) -> None:
    command = f"{sys.executable} {EXAMPLE} --megabytes 1 --repeats 2 --min-mb-per-s 2 --slow-rank 1"
    how = ("--nnodes", "2:3", "--last-call", "10m", "--preflight", command)
    coordinator = cluster.coordinator()
    env = {"OMP_NUM_THREADS": "1"}
    agents = [
        cluster.agent(*how, train(tmp_path), coordinator=coordinator, env=env) for _ in range(3)
    ]
    assert [agent.wait(120.0) for agent in agents] == [0] * 3, agents[0].log()
    assert trained(agents) == [f"trained as {rank} of 2 restart 0" for rank in range(2)]
    told = [event.reason for event in coordinator.run(cluster.run_id).history]
    assert any("rank 1: below 2 MB/s" in reason for reason in told), told
