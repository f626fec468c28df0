"""Front ends that die or stand still cost their agents a connection, and no run a restart."""

import signal
import socket

import psutil
import pytest

from tests.support.cluster import LOOPBACK, Agent, Cluster, Coordinator, Job, Worker, exit_all
from tests.support.status import RunStatus
from tests.support.waiting import MS, wait_until_sync

pytestmark = pytest.mark.slow

OPTIONS = ("--frontends", "2", "--lease", "2", "--heartbeat-interval", "0.3")
BACK_S = 20_000 * MS
AGENTS = 4


def front_ends(coordinator: Coordinator) -> list[psutil.Process]:
    found = psutil.Process(coordinator.pid).children()
    alive = [one for one in found if one.status() != psutil.STATUS_ZOMBIE]
    return [one for one in alive if "drumbeat.coordinator.frontends" in one.cmdline()]


def connections(one: psutil.Process) -> int:
    # Of psutil before 6, where it has another name.
    listed = one.net_connections if hasattr(one, "net_connections") else one.connections
    return sum(each.status == psutil.CONN_ESTABLISHED for each in listed("tcp"))


def trained(cluster: Cluster) -> tuple[Job, list[Agent], list[Worker]]:
    """Return a run whose agents are spread over both front ends, its agents and its workers."""
    job = cluster.job("--nnodes", str(AGENTS), coordinator=cluster.coordinator(*OPTIONS))
    agents = [job.join() for _ in range(AGENTS)]
    return job, agents, job.server.wait_for(AGENTS)


def end(agents: list[Agent], workers: list[Worker]) -> None:
    exit_all(workers)
    assert [agent.wait() for agent in agents] == [0] * AGENTS


def all_are_back(run: RunStatus) -> bool:
    silences = (agent.silence.ToTimedelta().total_seconds() for agent in run.agents)
    are_connected = [agent.is_connected for agent in run.agents] == [True] * AGENTS
    return are_connected and all(0 < silence < 1 for silence in silences)


def assert_nothing_was_restarted(job: Job, workers: list[Worker]) -> None:
    run = job.coordinator.wait_for_run("run", all_are_back, BACK_S)
    assert (run.round_id, run.restarts_used, run.failures_count) == (0, 0, 0)
    assert [worker.is_gone for worker in workers] == [False] * AGENTS
    assert "agent removed" not in job.coordinator.process.stderr


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_all_front_ends_one_after_the_other_are_replaced(
    cluster: Cluster, signum: signal.Signals
) -> None:
    job, agents, workers = trained(cluster)
    first = front_ends(job.coordinator)
    assert len(first) == 2
    for number, one in enumerate(first, 1):
        one.send_signal(signum)
        job.coordinator.process.wait_for_line("front end ended", count=number)
        wait_until_sync(lambda: len(front_ends(job.coordinator)) == 2, BACK_S)
        assert_nothing_was_restarted(job, workers)
    assert not {one.pid for one in first} & {one.pid for one in front_ends(job.coordinator)}
    end(agents, workers)


def test_all_front_ends_at_once_are_replaced_twice_in_a_row(cluster: Cluster) -> None:
    job, agents, workers = trained(cluster)
    for _ in range(2):
        for one in front_ends(job.coordinator):
            one.kill()
        wait_until_sync(lambda: len(front_ends(job.coordinator)) == 2, BACK_S)
    assert_nothing_was_restarted(job, workers)
    end(agents, workers)


def test_a_coordinator_that_stands_still_is_left_and_nothing_was_lost(cluster: Cluster) -> None:
    """Its agents notice as they would without front ends, and are back once it goes on."""
    job, agents, workers = trained(cluster)
    job.coordinator.process.stop()
    for agent in agents:
        agent.wait_for_line("coordinator lost")
    assert [connections(one) for one in front_ends(job.coordinator)] == [0, 0]
    job.coordinator.process.cont()
    assert_nothing_was_restarted(job, workers)
    end(agents, workers)


def test_front_ends_end_with_their_coordinator_and_leave_its_port(cluster: Cluster) -> None:
    job, agents, workers = trained(cluster)
    before = front_ends(job.coordinator)
    job.coordinator.kill()
    psutil.wait_procs(before, timeout=BACK_S)
    assert [one.is_running() for one in before] == [False, False]
    job.coordinator.restart()
    assert_nothing_was_restarted(job, workers)
    end(agents, workers)


def test_a_port_that_is_taken_is_said_and_nothing_is_left(cluster: Cluster) -> None:
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        second = cluster.own_coordinator(*OPTIONS, port=port, is_awaited=False)
        assert second.process.wait() == 2
        assert f"cannot listen on port {port}" in second.process.stderr
    cluster.wait_until_alone()


def test_many_short_calls_leave_nothing_behind(cluster: Cluster) -> None:
    """Each has a connection of its own, as of operators' commands."""
    coordinator = cluster.coordinator(*OPTIONS)
    before = [one.num_fds() for one in front_ends(coordinator)]
    for _ in range(10):
        assert coordinator.operate("status").wait() == 0
    wait_until_sync(lambda: not any(map(connections, front_ends(coordinator))), BACK_S)
    after = [one.num_fds() for one in front_ends(coordinator)]
    assert all(now <= then + 2 for now, then in zip(after, before, strict=True))
