"""An operator ends a job that trains: real workers, real exit codes."""

import pytest

from tests.support.cluster import Cluster


@pytest.mark.slow
def test_a_job_that_is_stopped_ends_everywhere_with_who_and_why(cluster: Cluster) -> None:
    job = cluster.job("--nnodes", "2", "--nproc-per-node", "1")
    agents = job.join_in_order((), ())
    workers = job.server.wait_for(2)
    stop = job.coordinator.operate("stop", job.run_id, "--reason", "wrong data")
    assert stop.wait() == 0
    assert [agent.wait() for agent in agents] == [4, 4]
    for worker in workers:
        worker.wait_gone()
    for agent in agents:
        assert f"run '{job.run_id}' was stopped by " in agent.stderr
        assert ": wrong data" in agent.stderr
    forget = job.coordinator.operate("forget", job.run_id)
    assert forget.wait() == 0


@pytest.mark.slow
def test_one_of_three_is_drained_and_the_others_train_on(cluster: Cluster) -> None:
    job = cluster.job("--nnodes", "2:3", "--nproc-per-node", "1", "--last-call", "1h")
    agents = job.join_in_order(("--name", "a"), ("--name", "b"), ("--name", "c"))
    workers = job.server.wait_for(3)
    drain = job.coordinator.operate("drain", "b", "--reason", "memory errors")
    assert drain.wait() == 0
    assert agents[1].wait() == 0
    assert "agent: this agent left its run, drained by " in agents[1].stderr
    for worker in workers:
        worker.wait_gone()
    for worker in job.server.wait_for(2):
        worker.ask("say trains on")
        worker.order("exit 0")
    assert [agents[0].wait(), agents[2].wait()] == [0, 0]
    assert job.state().run.restart_count == 0
    listed = job.coordinator.operate("drains")
    assert "memory errors" in listed.stdout
