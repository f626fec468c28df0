"""The exit barrier: a run is over when all are done, and the dead are not waited for."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.support.cluster import exit_all

if TYPE_CHECKING:
    from tests.support.cluster import Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("shared_coordinator")]


def test_agents_that_finish_apart_end_together(cluster: Cluster) -> None:
    """The first one waits, with its workers gone, until the last one is done."""
    job = cluster.job("--nnodes", "2")
    early, late = job.join_in_order((), ())
    workers = job.server.wait_for(2)
    workers[0].order("exit 0")
    job.wait_for_state(0, "SUCCEEDED")
    assert early.is_running
    assert early.worker_pids() == []
    workers[1].order("exit 0")
    assert [early.wait(), late.wait()] == [0, 0]
    assert job.state().verdict.is_success


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


def test_a_participant_killed_after_others_succeeded_makes_the_rest_run_again(
    cluster: Cluster,
) -> None:
    """Its part of the work is missing, so what the others have is not the whole."""
    job = cluster.job("--nnodes", "1:2", "--last-call", "1h")
    done, lost = job.join_in_order((), ())
    workers = job.server.wait_for(2)
    workers[0].order("exit 0")
    job.wait_for_state(0, "SUCCEEDED")
    lost.kill()
    (again,) = job.server.wait_for_round(1, 1)
    assert (again.rank, again.environment["WORLD_SIZE"], again.restart_count) == (0, "1", 0)
    again.order("exit 0")
    assert done.wait() == 0


def test_a_standby_replaces_a_participant_killed_after_others_succeeded(
    cluster: Cluster,
) -> None:
    """The same where one is there to take the place."""
    job = cluster.job("--nnodes", "2")
    done, lost = job.join_in_order((), ())
    workers = job.server.wait_for(2)
    standby = job.join()
    standby.wait_for_line("standing by")
    workers[0].order("exit 0")
    job.wait_for_state(0, "SUCCEEDED")
    lost.kill()
    again = job.server.wait_for_round(1, 2)
    assert {again[0].pid} == set(done.worker_pids())
    assert {again[1].pid} == set(standby.worker_pids())
    exit_all(again)
    assert [done.wait(), standby.wait()] == [0, 0]


@pytest.mark.parametrize(
    ("signum", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["TERM", "INT"]
)
def test_an_agent_that_is_done_may_be_ended_without_harm_to_the_others(
    cluster: Cluster, signum: int, exit_code: int
) -> None:
    """Its work is in; it only waited. It must not claim a success it was not told of."""
    job = cluster.job("--nnodes", "2")
    leaving, staying = job.join_in_order((), ())
    workers = job.server.wait_for(2)
    workers[0].order("exit 0")
    job.wait_for_state(0, "SUCCEEDED")
    leaving.send(signum)
    assert leaving.wait() == exit_code
    workers[1].order("exit 0")
    assert staying.wait() == 0
    state = job.state()
    assert (state.verdict.is_success, state.round_id) == (True, 0)
    assert job.server.is_quiet()


def test_an_agent_that_is_done_may_be_killed_without_harm_to_the_others(
    cluster: Cluster,
) -> None:
    """A machine that was given back early."""
    job = cluster.job("--nnodes", "2")
    lost, staying = job.join_in_order((), ())
    workers = job.server.wait_for(2)
    workers[0].order("exit 0")
    job.wait_for_state(0, "SUCCEEDED")
    lost.kill()
    job.coordinator.wait_for_run(cluster.run_id, lambda run: len(run.agents) == 1)
    workers[1].order("exit 0")
    assert staying.wait() == 0
    assert job.state().round_id == 0


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
