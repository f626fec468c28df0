"""More agents than places: one stands by, and takes over the ranks of an agent that is lost."""

import pytest

from tests.support.cluster import Cluster, exit_all

pytestmark = pytest.mark.usefixtures("shared_coordinator")


@pytest.mark.slow
def test_a_standby_takes_over_the_ranks_of_a_lost_agent_and_another_ends_with_the_run(
    cluster: Cluster,
) -> None:
    """Four agents for two places; the machine of group rank 0 dies. Surplus is no error."""
    job = cluster.job("--nnodes", "2", "--nproc-per-node", "2")
    lost, survivor = job.join_in_order((), ())
    before = job.server.wait_for(4)
    first, second = job.join_in_order((), ())
    second.wait_for_line("standing by")
    lost.kill()
    after = job.server.wait_for_round(1, 4)
    assert [worker.rank for worker in after] == [0, 1, 2, 3]
    assert {worker.pid for worker in after[:2]} == set(first.worker_pids())
    assert {worker.pid for worker in after[2:]} == set(survivor.worker_pids())
    assert [worker.environment["GROUP_RANK"] for worker in after] == ["0", "0", "1", "1"]
    assert {worker.restart_count for worker in after} == {0}
    assert all(worker.is_gone for worker in before)
    exit_all(after)
    assert [agent.wait() for agent in (survivor, first, second)] == [0, 0, 0]
    assert job.server.is_quiet()


@pytest.mark.slow
def test_a_waiting_agent_says_for_whom_and_how_long(cluster: Cluster) -> None:
    """One line for each change: who is there, who is missing, and the time left."""
    job = cluster.job("--nnodes", "3", "--join-timeout", "5m")
    first, _ = job.join_in_order((), ())
    first.wait_for_line("2 of 3 agents, waiting for 1")
    waits = [line for line in first.log_lines() if line["event"] == "standing by"]
    assert [line["reason"] for line in waits] == [
        "1 of 3 agents, waiting for 2",
        "2 of 3 agents, waiting for 1",
    ]
    assert waits[0]["time_left"] == "5 min"
    assert waits[1]["time_left"].startswith("4 min ")
