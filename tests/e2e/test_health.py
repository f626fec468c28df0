"""Hosts with a health check: one that fails is left out of rounds, and comes back once it heals."""

import time
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, Job, exit_all

pytestmark = pytest.mark.usefixtures("shared_coordinator")

LAST_CALL_S = 3.0
RANGE = ("--nnodes", "2:3", "--last-call", f"{LAST_CALL_S:g}", "--max-restarts", "2")


def check(flag: Path) -> tuple[str, str]:
    """An option: the host is healthy while this file is there."""
    return "--health-check", f"sh -c 'test -e {flag} || {{ echo fabric is down; exit 3; }}'"


def asked(job: Job, verb: str) -> str:
    """What an operator is told of the run."""
    process = job.coordinator.operate(verb, job.run_id)
    assert process.wait() == 0, process.log()
    return process.stdout


@pytest.mark.slow
def test_a_run_starts_without_an_unhealthy_host_and_takes_it_in_once_it_is_healthy(
    cluster: Cluster, tmp_path: Path
) -> None:
    coordinator = cluster.own_coordinator()
    job, flag = cluster.job(*RANGE, coordinator=coordinator), tmp_path / "healthy"
    ill = job.join("--name", "ill", *check(flag))
    ill.wait_for_line("host unhealthy: sh exited with 3: fabric is down")
    well = [job.join("--name", "one"), job.join("--name", "two")]
    assert len(job.server.wait_for(2)) == 2
    assert "unhealthy: sh exited with 3: fabric is down" in {
        agent.waiting_reason for agent in job.state().agents
    }
    assert "Unhealthy: ill (sh exited with 3: fabric is down)." in asked(job, "why")
    flag.touch()
    after = job.server.wait_for_round(1, 3)
    assert {worker.restart_count for worker in after} == {0}
    told = asked(job, "events")
    assert "agent_unhealthy" in told
    assert "agent_healthy_again" in told
    exit_all(after)
    assert [agent.wait() for agent in (ill, *well)] == [0, 0, 0]


@pytest.mark.slow
def test_a_host_whose_check_fails_after_a_worker_failed_there_is_left_out_of_the_next_round(
    cluster: Cluster, tmp_path: Path
) -> None:
    # It ends once nobody has come for a tenth of it.
    job, flag = cluster.job(*RANGE, "--last-call", "10m"), tmp_path / "healthy"
    flag.touch()
    agents = job.join_in_order((), (), check(flag))
    before = job.server.wait_for(3)
    flag.unlink()
    bad = next(worker for worker in before if worker.pid in agents[2].worker_pids())
    bad.order("exit 1")
    after = job.server.wait_for_round(1, 2)
    seated = {*agents[0].worker_pids(), *agents[1].worker_pids()}
    assert {worker.pid for worker in after} == seated
    exit_all(after)
    assert [agent.wait() for agent in agents] == [0, 0, 0]


@pytest.mark.slow
def test_a_check_that_never_ends_holds_others_up_for_a_last_call_and_ends_with_the_run(
    cluster: Cluster,
) -> None:
    job = cluster.job(*RANGE)
    slow = job.join("--health-check", "sh -c 'sleep 1000 & wait'")
    slow.wait_for_line("standing by")
    well = [job.join(), job.join()]
    well[1].wait_for_line("standing by")
    since = time.monotonic()
    workers = job.server.wait_for(2)
    assert time.monotonic() - since < 2 * LAST_CALL_S + 5.0  # a start of workers, on a busy machine
    exit_all(workers)
    assert [agent.wait() for agent in (slow, *well)] == [0, 0, 0]
