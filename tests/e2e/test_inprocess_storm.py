"""Many random faults in one job, of all kinds, and the coordinator dies among them."""

import collections
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.waiting import wait_until_sync

pytestmark = pytest.mark.timeout(400)

STORM_S = 240.0


def faults_in(directory: Path) -> list[str]:
    return [path.read_text() for path in directory.glob("fault-*")]


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "faults"), [(1, 15), pytest.param(2, 30, marks=pytest.mark.soak)])
def test_a_storm_ends_with_the_right_result(cluster: Cluster, seed: int, faults: int) -> None:
    """Eight ranks on two hosts; whoever is lost comes back with the next round of processes."""
    directory = cluster.directory / "faults"
    directory.mkdir()
    coordinator = cluster.coordinator()
    options = ("--nnodes", "2", "--nproc-per-node", "4", "--max-restarts", "30")
    worker = ("-m", "tests.support.workers.storming", str(directory), str(seed), str(faults))
    agents = [cluster.agent(*options, *worker, coordinator=coordinator) for _ in range(2)]
    wait_until_sync(
        lambda: len(faults_in(directory)) >= faults // 2, STORM_S, describe=cluster.logs
    )
    coordinator.kill()
    coordinator.restart()
    assert [agent.wait(STORM_S) for agent in agents] == [0, 0], cluster.logs()
    kinds = collections.Counter(faults_in(directory))
    assert kinds.total() == faults
    assert len(kinds) >= 5, kinds
    returned = "\n".join(agent.stdout for agent in agents)
    assert returned.count("returned 499500") >= 4
    assert returned.count("returned") == returned.count("returned 499500")
    run = coordinator.run("run")
    assert run.verdict.is_success
    assert run.iterations_restarted > 0
