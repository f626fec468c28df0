"""Rendezvous: who takes part in a round, and when it closes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.cluster import exit_all

if TYPE_CHECKING:
    from tests.support.cluster import Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("shared_coordinator")]


def test_a_full_round_closes_at_once(cluster: Cluster) -> None:
    """The maximum is there: no last call, however long it would be."""
    job = cluster.job("--nnodes", "1:2", "--last-call", "1h")
    agents = [job.join(), job.join()]
    workers = job.server.wait_for(2)
    assert [worker.rank for worker in workers] == [0, 1]
    exit_all(workers)
    assert [agent.wait() for agent in agents] == [0, 0]


def test_last_call_ends_with_fewer_than_the_maximum(cluster: Cluster) -> None:
    """Nobody came for a while: those that are there train."""
    job = cluster.job("--nnodes", "1:3", "--last-call", "20s")
    agents = [job.join(), job.join()]
    workers = job.server.wait_for(2)
    assert {worker.environment["WORLD_SIZE"] for worker in workers} == {"2"}
    assert {worker.round_id for worker in workers} == {0}
    agents[0].wait_for_line("last call is over with 2 of 3 agents")
    exit_all(workers)
    assert [agent.wait() for agent in agents] == [0, 0]


def test_a_late_joiner_within_the_last_call_is_in_the_first_round(cluster: Cluster) -> None:
    """The minimum is there and waits; who comes meanwhile is in, not in the next round."""
    job = cluster.job("--nnodes", "1:2", "--last-call", "1h")
    first = job.join()
    first.wait_for_line("1 agent is enough, last call for 1 more")
    late = job.join()
    workers = job.server.wait_for(2)
    assert {worker.round_id for worker in workers} == {0}
    exit_all(workers)
    assert [first.wait(), late.wait()] == [0, 0]


def test_a_standby_takes_over_the_ranks_of_a_lost_agent(cluster: Cluster) -> None:
    """Three agents for two places; the machine of group rank 0 dies."""
    job = cluster.job("--nnodes", "2", "--nproc-per-node", "2")
    lost, survivor = job.join_in_order((), ())
    before = job.server.wait_for(4)
    standby = job.join()
    standby.wait_for_line("standing by")
    lost.kill()
    after = job.server.wait_for_round(1, 4)
    assert [worker.rank for worker in after] == [0, 1, 2, 3]
    assert {worker.pid for worker in after[:2]} == set(standby.worker_pids())
    assert {worker.pid for worker in after[2:]} == set(survivor.worker_pids())
    assert [worker.environment["GROUP_RANK"] for worker in after] == ["0", "0", "1", "1"]
    assert {worker.restart_count for worker in after} == {0}
    assert all(worker.is_gone for worker in before)
    exit_all(after)
    assert [survivor.wait(), standby.wait()] == [0, 0]


def test_a_standby_that_was_not_needed_ends_with_the_run(cluster: Cluster) -> None:
    """Surplus is no error: its exit code is the run's."""
    job = cluster.job("--nnodes", "1")
    participant = job.join()
    (worker,) = job.server.wait_for(1)
    standby = job.join()
    standby.wait_for_line("standing by")
    worker.order("exit 0")
    assert [participant.wait(), standby.wait()] == [0, 0]
    assert job.server.is_quiet()


def test_the_join_timeout_ends_a_run_that_lacks_agents(cluster: Cluster) -> None:
    """Every agent that waits is told how many came, and exits with 1."""
    job = cluster.job("--nnodes", "2", "--join-timeout", "4s")
    agent = job.join()
    assert agent.wait() == 1
    assert "join timeout: 1 of 2 agents after 4 s" in agent.stderr


def test_a_waiting_agent_says_for_whom_and_how_long(cluster: Cluster) -> None:
    """One line for each change: who is there, who is missing, and the time left."""
    job = cluster.job("--nnodes", "3", "--join-timeout", "5m")
    first = job.join()
    first.wait_for_line("1 of 3 agents, waiting for 2")
    job.join()
    first.wait_for_line("2 of 3 agents, waiting for 1")
    waits = [line for line in first.log_lines() if line["event"] == "standing by"]
    assert [line["reason"] for line in waits] == [
        "1 of 3 agents, waiting for 2",
        "2 of 3 agents, waiting for 1",
    ]
    assert waits[0]["time_left"] == "5 min"
    assert waits[1]["time_left"].startswith("4 min ")
