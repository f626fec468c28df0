"""A real training script for torchrun, unmodified."""

import re
from importlib.util import find_spec

import pytest

from tests.support.cluster import ROOT, Agent, Cluster
from tests.support.waiting import MS

pytestmark = [
    pytest.mark.torch,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        find_spec("sklearn") is None,
        reason="examples/train_ddp.py trains on scikit-learn's digits (the demo extra)",
    ),
    pytest.mark.usefixtures("shared_coordinator"),
]

SCRIPT = str(ROOT / "examples" / "train_ddp.py")
ACCURACY_MIN = 0.95
TRAINING_S = 120_000 * MS


def accuracy(agents: list[Agent]) -> float:
    """What rank 0 printed."""
    found = re.findall(r"test accuracy ([\d.]+)", "\n".join(agent.stdout for agent in agents))
    assert len(found) == 1
    return float(found[0])


@pytest.mark.slow
def test_standalone_training_reaches_its_accuracy(cluster: Cluster) -> None:
    """DistributedDataParallel over two workers, as the README has it."""
    options = ("--standalone", "--nproc-per-node", "2", "--preload", "torch,sklearn.datasets")
    agent = cluster.agent(*options, SCRIPT, "--epochs", "6")
    assert agent.wait(TRAINING_S) == 0
    assert accuracy([agent]) > ACCURACY_MIN
    assert "restart 0" in agent.stdout


@pytest.mark.slow
def test_training_on_two_agents_survives_a_killed_worker(cluster: Cluster) -> None:
    """One of four is killed midway; all go on from the checkpoint, after exactly one restart.

    What they import is imported once on each host.
    """
    coordinator = cluster.coordinator()
    size = ("--nnodes", "2", "--nproc-per-node", "2")
    options = (*size, "--max-restarts", "3", "--preload", "torch,sklearn.datasets")
    checkpoints = ("--checkpoint-dir", str(cluster.directory / "checkpoints"))
    command = (*options, SCRIPT, "--epochs", "20", *checkpoints)
    env = {"OMP_NUM_THREADS": "1"}
    leader = cluster.agent(*command, coordinator=coordinator, env=env)
    leader.wait_for_line("standing by")  # so that rank 0 is its
    agents = [leader, cluster.agent(*command, coordinator=coordinator, env=env)]
    leader.wait_for_line(r"rank 0: epoch 3/", TRAINING_S)
    agents[1].worker(3).kill()
    assert [agent.wait(TRAINING_S) for agent in agents] == [0, 0]
    assert accuracy(agents) > ACCURACY_MIN
    last = coordinator.run(cluster.run_id)
    assert (last.restart_count, last.round_id, last.verdict.is_success) == (1, 1, True)
    resumed = leader.wait_for_line(r"rank 0: first step, epoch (\d+), restart 1")
    assert int(resumed[1]) > 3
    stderr = "\n".join(agent.stderr for agent in agents)
    assert "SIGKILL" in stderr
    assert (stderr.count("preloaded "), stderr.count("by themselves")) == (2, 0), stderr


OUTLIVED = """
import os, select
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

dist.init_process_group("gloo")
store = _get_default_store()
if dist.get_rank() == 0:
    store.set("pid", str(os.getpid()))
else:
    first = os.pidfd_open(int(store.get("pid")))
    select.select([first], [], [])
    store.set("late", "heard")
    print("rank 1 was", store.get("late").decode(), flush=True)
"""


@pytest.mark.slow
def test_the_store_outlives_rank_0(cluster: Cluster) -> None:
    """Rank 1 uses it once rank 0 has returned, as under torchrun."""
    script = cluster.directory / "outlived.py"
    script.write_text(OUTLIVED)
    agent = cluster.agent("--standalone", "--nproc-per-node", "2", str(script))
    assert agent.wait(TRAINING_S) == 0, agent.log()
    agent.wait_for_line("rank 1 was heard")
