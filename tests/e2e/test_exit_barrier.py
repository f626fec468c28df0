"""The exit barrier: a run is over when all are done, and the dead are not waited for."""

import pytest

from tests.support.cluster import Cluster, exit_all

pytestmark = pytest.mark.usefixtures("shared_coordinator")


@pytest.mark.slow
def test_a_failure_after_others_succeeded_restarts_them_too(cluster: Cluster) -> None:
    """The group is a unit until all are done."""
    job = cluster.job("--nnodes", "2", "--max-restarts", "1")
    agents = job.join_in_order((), ())
    workers = job.server.wait_for(2)
    workers[0].order("exit 0")
    job.wait_for_state(0, "SUCCEEDED")
    workers[1].order("exit 1")
    again = job.server.wait_for_round(1, 2)
    assert {worker.restart_count for worker in again} == {1}
    exit_all(again)
    assert [agent.wait() for agent in agents] == [0, 0]


@pytest.mark.slow
def test_agents_that_finish_apart_end_together(cluster: Cluster) -> None:
    """Those that are done wait with their workers gone; one may be ended or killed meanwhile.

    An agent that is ended must not claim a success that it does not know of.
    """
    job = cluster.job("--nnodes", "4")
    ended, killed, early, late = agents = job.join_in_order((), (), (), ())
    workers = job.server.wait_for(4)
    for rank, worker in enumerate(workers[:3]):
        worker.order("exit 0")
        job.wait_for_state(rank, "SUCCEEDED")
    assert [agent.is_running for agent in agents] == [True] * 4
    assert early.worker_pids() == []
    ended.terminate()
    assert ended.wait() == 143
    killed.kill()
    job.coordinator.wait_for_run(cluster.run_id, lambda run: len(run.agents) == 2)
    workers[3].order("exit 0")
    assert [early.wait(), late.wait()] == [0, 0]
    state = job.state()
    assert (state.verdict.is_success, state.round_id) == (True, 0)
    assert job.server.is_quiet()


@pytest.mark.slow
def test_an_agent_that_waited_long_enough_ends_with_success_and_the_others_train_on(
    cluster: Cluster,
) -> None:
    """It says for whom it does not wait any more; the run is theirs from then on."""
    job = cluster.job("--nnodes", "2", "--exit-barrier-timeout", "500ms")
    done, late = job.join_in_order((), ())
    workers = job.server.wait_for(2)
    workers[0].order("exit 0")
    assert done.wait() == 0
    assert "exit barrier timeout" in done.stderr
    assert "(group rank 1)" in done.stderr
    assert late.is_running
    assert job.state().round_id == 0
    workers[1].order("exit 0")
    assert late.wait() == 0
    assert job.state().verdict.is_success
