"""Coordinators that die, hang or end: training goes on, and what they knew is known again."""

import signal
import time

import pytest

from tests.support.cluster import Cluster, Job, Worker, exit_all
from tests.support.status import RunStatus
from tests.support.waiting import MS

QUICK_LEASE = ("--heartbeat-interval", "0.2", "--lease", "1")
BACK_S = 10_000 * MS
"""How soon agents are back at a coordinator that is; their delay is at most a second."""


def all_connected(count: int, run: RunStatus) -> bool:
    return [agent.is_connected for agent in run.agents] == [True] * count


def wait_for_agents(job: Job, count: int) -> RunStatus:
    return job.coordinator.wait_for_run(
        "run", lambda run: all_connected(count, run) and run.phase == 2, BACK_S
    )


def assert_untouched(workers: list[Worker]) -> None:
    """No worker has ended, nor had to."""
    assert [worker.is_gone for worker in workers] == [False] * len(workers)
    assert [worker.ask("say still here") for worker in workers] == [""] * len(workers)


@pytest.mark.slow
def test_a_killed_coordinator_costs_no_worker_and_knows_the_run_when_it_is_back(
    cluster: Cluster,
) -> None:
    # One worker each, so that a failure makes exactly one record: one beside it would
    # make another or not, as it ends before or after the decision.
    job = cluster.job("--nnodes", "2", "--max-restarts", "2")
    agents = [job.join(), job.join()]
    first = job.server.wait_for(2)
    first[0].order("exit 7")
    workers = job.server.wait_for_round(1, 2)
    before = job.coordinator.wait_for_run("run", lambda run: run.failures_count == 1)

    job.coordinator.kill()
    for agent in agents:
        agent.wait_for_line("coordinator lost")
    assert_untouched(workers)
    job.coordinator.restart()
    after = wait_for_agents(job, 2)
    assert_untouched(workers)
    assert (after.round_id, after.restart_count) == (1, 1)
    assert after.failures_count == before.failures_count == 1
    assert [agent.incarnation for agent in after.agents] == [
        agent.incarnation for agent in before.agents
    ]

    workers[1].order("exit 8")
    again = job.server.wait_for_round(2, 2)
    assert {worker.restart_count for worker in again} == {2}
    exit_all(again)
    assert [agent.wait() for agent in agents] == [0, 0]
    run = job.state()
    assert (run.failures_count, run.verdict.is_success, run.verdict.restart_count) == (2, True, 2)


@pytest.mark.slow
@pytest.mark.parametrize("is_killed_first", [True, False])
def test_a_coordinator_killed_around_a_failure_decides_it_once(
    cluster: Cluster, is_killed_first: bool
) -> None:
    """Whether the failure, its record or the decision had arrived before is all the same."""
    job = cluster.job("--nnodes", "1", "--max-restarts", "5")
    agent = job.join()
    workers = job.server.wait_for(1)
    if is_killed_first:
        job.coordinator.process.send(signal.SIGKILL)
        workers[0].order("exit 9")
    else:
        workers[0].order("exit 9")
        workers[0].wait_gone()
        job.coordinator.process.send(signal.SIGKILL)
    job.coordinator.process.wait()
    job.coordinator.restart()
    again = job.server.wait_for_round(1, 1)
    assert {worker.restart_count for worker in again} == {1}
    run = job.coordinator.wait_for_run("run", lambda run: run.failures_count == 1, BACK_S)
    assert run.restart_count == 1
    exit_all(again)
    assert agent.wait() == 0
    run = job.state()
    assert (run.failures_count, run.restart_count, run.round_id) == (1, 1, 1)


@pytest.mark.slow
def test_a_coordinator_told_to_end_ends_in_order_and_the_next_one_goes_on(
    cluster: Cluster,
) -> None:
    job = cluster.job("--nnodes", "2")
    agents = [job.join(), job.join()]
    workers = job.server.wait_for(2)
    lives = [job.coordinator.process]
    for _ in range(3):
        assert job.coordinator.terminate() == 0
        job.coordinator.restart()
        lives.append(job.coordinator.process)
        wait_for_agents(job, 2)
        assert_untouched(workers)
    exit_all(workers)
    assert [agent.wait() for agent in agents] == [0, 0]
    assert job.server.is_quiet()
    job.coordinator.terminate()
    for process in (*agents, *lives):
        # What asyncio says of tasks and generators that nothing waits for.
        for noise in ("Task ", "never retrieved", "asynchronous generator", "Traceback"):
            assert noise not in process.stderr, process.log()


@pytest.mark.slow
def test_a_failed_verdict_outlives_its_coordinator(cluster: Cluster) -> None:
    job = cluster.job("--nnodes", "1")
    agent = job.join()
    (worker,) = job.server.wait_for(1)
    job.coordinator.kill()
    worker.ask("error it was the fan")
    worker.order("exit 3")
    worker.wait_gone()
    job.coordinator.restart()
    assert agent.wait() == 1
    assert "it was the fan" in agent.stderr
    job.coordinator.kill()
    job.coordinator.restart()
    run = job.state()
    assert not run.verdict.is_success
    (cause,) = run.verdict.report.root_causes
    assert cause.exit_code == 3


@pytest.mark.slow
def test_agents_end_when_the_coordinator_is_gone_for_good(cluster: Cluster) -> None:
    job = cluster.job("--nnodes", "2", "--nproc-per-node", "2", "--coordinator-grace", "2s")
    agents = [job.join(), job.join()]
    workers = job.server.wait_for(4)
    job.coordinator.kill()
    assert [agent.wait() for agent in agents] == [3, 3]
    for agent in agents:
        assert f"the coordinator at {job.coordinator.address} did not come back" in agent.stderr
    for worker in workers:
        worker.wait_gone()
    cluster.wait_until_alone()


@pytest.mark.slow
def test_a_coordinator_that_was_frozen_evicts_nobody(cluster: Cluster) -> None:
    """It could not hear, which is no fault of the agents, whose lease is one second."""
    job = cluster.job("--nnodes", "2", coordinator=cluster.coordinator(*QUICK_LEASE))
    agents = [job.join(), job.join()]
    workers = job.server.wait_for(2)
    wait_for_agents(job, 2)
    job.coordinator.process.stop()
    time.sleep(1.5)  # the passing of time is the event here
    job.coordinator.process.cont()
    # Once each was heard again, whatever was to be decided about the silence is decided.
    job.coordinator.wait_for_run(
        "run",
        lambda run: all(
            0 < agent.silence.ToTimedelta().total_seconds() < 0.8 for agent in run.agents
        ),
    )
    run = wait_for_agents(job, 2)
    assert run.round_id == 0
    assert_untouched(workers)
    assert "agent removed" not in job.coordinator.process.stderr
    exit_all(workers)
    assert [agent.wait() for agent in agents] == [0, 0]
