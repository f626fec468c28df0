"""Ranks and the environment that workers are given."""

import pytest

from tests.support.cluster import Cluster, Worker, exit_all

pytestmark = pytest.mark.usefixtures("shared_coordinator")

# By rank: agent 0 has two trainers, agent 1 one reader, agent 2 three trainers.
LAYOUT = (
    # (local rank, local world size, group rank, role, role rank, role world size)
    (0, 2, 0, "trainer", 0, 5),
    (1, 2, 0, "trainer", 1, 5),
    (0, 1, 1, "reader", 0, 1),
    (0, 3, 2, "trainer", 2, 5),
    (1, 3, 2, "trainer", 3, 5),
    (2, 3, 2, "trainer", 4, 5),
)
AGENTS = (
    ("--role", "trainer", "--nproc-per-node", "2"),
    ("--role", "reader", "--nproc-per-node", "1"),
    ("--role", "trainer", "--nproc-per-node", "3"),
)
NAMES = (
    *("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
    *("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
)


def layout(workers: list[Worker]) -> list[tuple[str, ...]]:
    return [tuple(worker.environment[name] for name in NAMES) for worker in workers]


@pytest.mark.slow
def test_roles_and_local_world_sizes_give_torchruns_ranks(cluster: Cluster) -> None:
    """Global ranks follow the group ranks, role ranks count within the role; for good."""
    job = cluster.job("--nnodes", "3", "--max-restarts", "1")
    agents = job.join_in_order(*AGENTS)
    expected = [tuple(map(str, row)) for row in LAYOUT]
    first = job.server.wait_for(6)
    assert [worker.rank for worker in first] == [0, 1, 2, 3, 4, 5]
    assert layout(first) == expected
    first[2].order("exit 1")
    second = job.server.wait_for_round(1, 6)
    assert layout(second) == expected
    # The same agents, not only the same numbers.
    by_agent = [{w.pid for w in second if w.environment["GROUP_RANK"] == str(n)} for n in range(3)]
    assert by_agent == [set(agent.worker_pids()) for agent in agents]
    exit_all(second)
    assert [agent.wait() for agent in agents] == [0, 0, 0]
