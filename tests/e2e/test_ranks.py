"""Ranks and the environment that workers are given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.cluster import exit_all

if TYPE_CHECKING:
    from tests.support.cluster import Cluster, Worker

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("shared_coordinator")]

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


def test_workers_get_the_whole_environment_of_torchrun(cluster: Cluster) -> None:
    """Each variable that a script for torchrun may read, and ours beside it."""
    job = cluster.job("--nnodes", "2", "--max-restarts", "4", "--nproc-per-node", "2")
    agents = [job.join(), job.join()]
    workers = job.server.wait_for(4)
    for rank, worker in enumerate(workers):
        environment = worker.environment
        expected = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank % 2),
            "WORLD_SIZE": "4",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": str(rank // 2),
            "GROUP_WORLD_SIZE": "2",
            "ROLE_RANK": str(rank),
            "ROLE_NAME": "default",
            "ROLE_WORLD_SIZE": "4",
            "MASTER_ADDR": "127.0.0.1",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "4",
            "TORCHELASTIC_RUN_ID": job.run_id,
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
            "OMP_NUM_THREADS": "1",
            "DRUMBEAT_RUN_ID": job.run_id,
            "DRUMBEAT_ROUND": "0",
        }
        assert {name: environment.get(name) for name in expected} == expected
        assert 1 <= int(environment["MASTER_PORT"]) <= 65535
        error_file = Path(environment["TORCHELASTIC_ERROR_FILE"])
        assert error_file.parent.is_dir()
        assert not error_file.exists()
    assert len({worker.environment["MASTER_PORT"] for worker in workers}) == 1
    assert len({worker.environment["TORCHELASTIC_ERROR_FILE"] for worker in workers}) == 4
    exit_all(workers)
    assert [agent.wait() for agent in agents] == [0, 0]


def test_omp_num_threads_is_only_a_default_for_several_workers(cluster: Cluster) -> None:
    """It is set where workers share cores and nobody chose, and the agent says so once."""
    job = cluster.job("--nnodes", "3", "--max-restarts", "1")
    several = job.join("--nproc-per-node", "2")
    alone = job.join("--nproc-per-node", "1")
    chosen = job.join("--nproc-per-node", "2", env={"OMP_NUM_THREADS": "7"})
    job.server.wait_for(5)[0].order("exit 1")
    workers = job.server.wait_for_round(1, 5)
    threads = {worker.pid: worker.environment.get("OMP_NUM_THREADS") for worker in workers}
    assert [threads[pid] for pid in several.worker_pids()] == ["1", "1"]
    assert [threads[pid] for pid in alone.worker_pids()] == [None]
    assert [threads[pid] for pid in chosen.worker_pids()] == ["7", "7"]
    said = [
        [line["event"] for line in agent.log_lines()].count("OMP_NUM_THREADS set to 1")
        for agent in (several, alone, chosen)
    ]
    assert said == [1, 0, 0]


def test_the_users_own_settings_reach_the_workers_and_the_agents_options_do_not(
    cluster: Cluster,
) -> None:
    """An agent within a worker must not take the outer one's options for its own."""
    job = cluster.job()
    own = {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
        "MY_SETTING": "ä = 1",
        "DRUMBEAT_NPROC_PER_NODE": "2",
        "DRUMBEAT_RUN_ID": "other",
    }
    job.join(env=own)
    for worker in job.server.wait_for(2):
        assert worker.environment["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"
        assert worker.environment["MY_SETTING"] == "ä = 1"
        assert "DRUMBEAT_NPROC_PER_NODE" not in worker.environment
        assert worker.environment["DRUMBEAT_RUN_ID"] == job.run_id
