"""``inprocess.Wrapper`` of nvidia-resiliency-ext restarts workers of real agents, on our store."""

import json
import re
from importlib.util import find_spec

import pytest

from tests.support.cluster import Agent, Cluster, Coordinator
from tests.support.waiting import MS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.timeout(240),
    pytest.mark.usefixtures("shared_coordinator"),
    pytest.mark.skipif(
        find_spec("nvidia_resiliency_ext") is None,
        reason="nvidia-resiliency-ext is not installed (nvrx extra)",
    ),
]

TRAINING_S = 90_000 * MS


def start(cluster: Cluster, coordinator: Coordinator, plan: dict[str, str]) -> list[Agent]:
    """Start two agents with two workers each, in the order of their ranks."""
    preload = "torch,nvidia_resiliency_ext.inprocess,drumbeat.nvrx"
    # A tenth of the last call without another agent ends it.
    size = ("--nnodes", "1:2", "--last-call", "600", "--nproc-per-node", "2")
    command = (*size, "--preload", preload, "-m", "tests.support.workers.nvrx", json.dumps(plan))
    first = cluster.agent(*command, coordinator=coordinator)
    first.wait_for_line("standing by")
    return [first, cluster.agent(*command, coordinator=coordinator)]


def lines(agents: list[Agent], what: str) -> list[tuple[str, ...]]:
    """Every line ``what`` of all workers: round, first rank, and the values in it."""
    matches = (
        match
        for agent in agents
        for match in re.finditer(rf"r(\d+) w(\d+) {what} (.*)$", agent.stdout, re.MULTILINE)
    )
    return sorted((m[1], m[2], *(word.split("=")[1] for word in m[3].split())) for m in matches)


def sums(agents: list[Agent], round_id: int, iteration: int) -> dict[str, str]:
    """What each rank of the start had in an iteration as the sum of ones over all ranks."""
    at = (str(round_id), str(iteration))
    return {rank: total for r, rank, i, _, total in lines(agents, "reduced") if (r, i) == at}


def test_workers_go_on_without_those_that_are_lost(cluster: Cluster) -> None:
    """A rank raises, rank 0 is killed, then the host that does not have the store."""
    coordinator = cluster.coordinator()
    agents = start(cluster, coordinator, {"3:0": "raise", "0:1": "kill", "host 1:2": "lost"})
    agents[1].wait_for_line("reduced iteration=2", TRAINING_S, count=2)
    agents[1].kill()
    assert agents[0].wait(TRAINING_S) == 0, cluster.logs()
    expected = [dict.fromkeys("0123", "4"), dict.fromkeys("0123", "4"), dict.fromkeys("123", "3")]
    assert [sums(agents, 0, i) for i in range(4)] == [*expected, {"1": "1"}]
    assert len({pid for _, _, _, pid, _ in lines(agents, "reduced")}) == 4
    assert lines(agents, "returned") == [("0", "1", "1")]
    run = coordinator.run(cluster.run_id)
    assert (run.verdict.is_success, run.restart_count, run.iterations_restarted) == (True, 0, 2)
    assert "1 of 4 workers succeeded" in run.verdict.reason


def test_a_new_round_begins_once_the_host_that_has_the_store_is_lost(cluster: Cluster) -> None:
    """Workers can't go on without it: all of them start again, and it costs no restart."""
    coordinator = cluster.coordinator()
    agents = start(cluster, coordinator, {"host 0:0": "lost"})
    for agent in agents:
        agent.wait_for_line("reduced iteration=0", TRAINING_S, count=2)
    agents[0].kill()
    assert agents[1].wait(TRAINING_S) == 0, cluster.logs()
    assert sums(agents, 1, 0) == {"0": "2", "1": "2"}
    run = coordinator.run(cluster.run_id)
    assert (run.verdict.is_success, run.restart_count, run.iterations_restarted) == (True, 0, 0)
