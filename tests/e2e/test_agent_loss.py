"""Agents and supervisors that die or hang: nothing of theirs lives on, the others go on."""

import re

import psutil
import pytest

from tests.support.cluster import Agent, Cluster, Worker, exit_all
from tests.support.waiting import MS, wait_until_sync

RULE = "====="  # begins and ends a failure report
ORPHANS_GONE_S = 1000 * MS
"""How soon nothing of a dead agent may be alive."""

QUICK_LEASE = ("--heartbeat-interval", "0.2", "--lease", "1")
LONG = ("--last-call", "1h", "--join-timeout", "1h")


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def of_agent(agent: Agent, workers: list[Worker]) -> list[Worker]:
    pids = set(agent.worker_pids())
    return [worker for worker in workers if worker.pid in pids]


def with_grandchildren(workers: list[Worker]) -> list[int]:
    """Let each worker start a process in a session of its own; return all pids."""
    return [pid for worker in workers for pid in (worker.pid, worker.ask("spawn"))]


def assert_gone(pids: list[int]) -> None:
    wait_until_sync(
        lambda: not any(map(is_alive, pids)),
        ORPHANS_GONE_S,
        describe=lambda: [pid for pid in pids if is_alive(pid)],
    )


@pytest.mark.slow
def test_survivors_of_a_killed_agent_form_anew(cluster: Cluster) -> None:
    """Also those of one that was ended by a signal, to give its machine back."""
    job = cluster.job("--nnodes", "1:3", "--nproc-per-node", "2", *LONG)
    doomed, leaving, survivor = (job.join() for _ in range(3))
    workers = job.server.wait_for(6)
    doomed_workers = of_agent(doomed, workers)
    assert len(doomed_workers) == 2
    pids = with_grandchildren(doomed_workers)
    doomed.kill()
    assert_gone(pids)
    again = job.server.wait_for_round(1, 4)
    left = of_agent(leaving, again)
    leaving.terminate()
    assert leaving.wait() == 143
    assert [worker.is_gone for worker in left] == [True, True]
    last = job.server.wait_for_round(2, 2)
    assert [worker.environment["WORLD_SIZE"] for worker in last] == ["2", "2"]
    assert [worker.restart_count for worker in last] == [0, 0]  # costs no restart
    assert {worker.pid for worker in last} == set(survivor.worker_pids())
    exit_all(last)
    assert survivor.wait() == 0


@pytest.mark.slow
def test_a_run_that_lost_too_many_waits_and_then_fails_with_a_reason(cluster: Cluster) -> None:
    job = cluster.job("--nnodes", "2:2", "--join-timeout", "3s")
    doomed, survivor = job.join(), job.join()
    workers = job.server.wait_for(2)
    pids = with_grandchildren(workers)
    doomed.kill()
    # The survivor's too: the group is a unit.
    wait_until_sync(lambda: not any(map(is_alive, pids)), 20_000 * MS)
    assert survivor.wait() == 1
    assert "join timeout: 1 of 2 agents after 3 s" in survivor.stderr
    run = job.state()
    assert not run.verdict.is_success
    assert "join timeout" in run.verdict.reason
    assert job.server.is_quiet()
    cluster.wait_until_gone(survivor.pid)


@pytest.mark.slow
@pytest.mark.parametrize("nnodes", ["2", "1"])
def test_a_killed_supervisor_fails_its_workers_and_is_replaced(
    cluster: Cluster, nnodes: str
) -> None:
    job = cluster.job("--nnodes", nnodes, "--nproc-per-node", "2", "--max-restarts", "1")
    agents = [job.join() for _ in range(int(nnodes))]
    workers = job.server.wait_for(2 * len(agents))
    hit = agents[0]
    lost = of_agent(hit, workers)
    pids = with_grandchildren(lost)
    supervisor = hit.supervisor()
    supervisor.kill()
    again = job.server.wait_for_round(1, 2 * len(agents))
    assert not any(map(is_alive, pids))  # gone before a worker of the next round is there
    assert {worker.restart_count for worker in again} == {1}
    assert hit.supervisor().pid != supervisor.pid
    # A record for each worker of that host; those of the other were only stopped.
    run = job.coordinator.wait_for_run("run", lambda run: run.failures_count >= 2)
    assert run.failures_count == 2
    assert run.restart_count == 1
    hit.wait_for_line("supervisor died")
    hit.supervisor().kill()
    assert [agent.wait() for agent in agents] == [1] * len(agents)
    for agent in agents:
        assert re.search(r"message +: the agent's supervisor was ended by SIGKILL", agent.stderr)


@pytest.mark.slow
def test_workers_that_fail_because_of_a_dead_machine_cost_nothing(cluster: Cluster) -> None:
    """Without a restart to spend: a worker elsewhere fails before the machine's lease is over."""
    coordinator = cluster.coordinator("--heartbeat-interval", "0.4", "--lease", "2")
    job = cluster.job("--nnodes", "2:3", "--max-restarts", "0", *LONG, coordinator=coordinator)
    dead, *others = [job.join() for _ in range(3)]
    workers = job.server.wait_for(3)
    victim = of_agent(others[0], workers)
    dead.stop()
    exit_all(victim, 1)
    again = job.server.wait_for_round(1, 2)
    assert {worker.restart_count for worker in again} == {0}
    exit_all(again)
    assert [agent.wait() for agent in others] == [0, 0]
    dead.kill()


@pytest.mark.slow
def test_a_frozen_agent_is_replaced_and_joins_afresh_when_it_wakes(cluster: Cluster) -> None:
    job = cluster.job("--nnodes", "1:2", *LONG, coordinator=cluster.coordinator(*QUICK_LEASE))
    frozen, other = job.join(), job.join()
    workers = job.server.wait_for(2)
    (of_frozen,) = of_agent(frozen, workers)
    frozen.stop()
    (again,) = job.server.wait_for_round(1, 1)  # its lease ended it
    assert again.environment["WORLD_SIZE"] == "1"
    assert again.pid in other.worker_pids()
    assert is_alive(of_frozen.pid)  # nobody could stop it
    frozen.cont()
    of_frozen.wait_gone()
    # There is room for it, so the run scales up again.
    full = job.server.wait_for_round(2, 2)
    assert {worker.restart_count for worker in full} == {0}
    exit_all(full)
    assert [frozen.wait(), other.wait()] == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("end", ["failure", "stop"])
def test_an_agent_that_wakes_after_the_end_of_its_run_exits_as_the_run_did(
    cluster: Cluster, end: str
) -> None:
    coordinator = cluster.coordinator(*QUICK_LEASE)
    job = cluster.job("--nnodes", "1:2", *LONG, coordinator=coordinator)
    frozen, other = job.join(), job.join()
    job.server.wait_for(2)
    frozen.stop()
    (again,) = job.server.wait_for_round(1, 1)
    if end == "stop":
        assert coordinator.operate("stop", job.run_id).wait() == 0
    else:
        again.order("exit 1")
    code = other.wait()
    assert code == {"failure": 1, "stop": 4}[end]
    frozen.cont()
    assert frozen.wait() == code, frozen.log()
    assert "gave this agent up" in frozen.stderr
    reports = [
        each.stderr[each.stderr.find(RULE) : each.stderr.rfind(RULE)] for each in (frozen, other)
    ]
    assert reports[0] == reports[1]
    assert bool(reports[0]) == (end == "failure")
    assert not list(cluster.directory.glob("drumbeat-*")), "nobody takes its records over"
