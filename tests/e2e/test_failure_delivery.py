"""Failure records: each reaches the coordinator, and counts once, whatever is cut on the way."""

import pytest

from tests.support.cluster import LOOPBACK, Agent, Cluster, Coordinator, WorkerServer, exit_all
from tests.support.proxy import Proxy


def join_through(cluster: Cluster, proxy: Proxy, server: WorkerServer, *options: str) -> Agent:
    """Start an agent that knows the coordinator only by the proxy's address."""
    return cluster.agent(
        *("--coordinator", proxy.address, "--run-id", "run", "--local-addr", LOOPBACK),
        *(*options, *server.command),
    )


def records_left(cluster: Cluster) -> int:
    """Count what is spooled on this host."""
    return len(list(cluster.directory.rglob("spool/run=run/*.record")))


def wait_for_count(coordinator: Coordinator, count: int) -> None:
    run = coordinator.wait_for_run("run", lambda run: run.failures_count >= count)
    assert run.failures_count == count


@pytest.mark.slow
def test_a_record_written_while_the_connection_was_cut_counts_once(cluster: Cluster) -> None:
    coordinator, server = cluster.coordinator(), cluster.worker_server()
    token = coordinator.create_token().text()
    with Proxy(coordinator.address) as proxy:
        agent = join_through(cluster, proxy, server, "--token", token, "--max-restarts", "3")
        workers = server.wait_for(1)
        proxy.cut(refuse=True)
        agent.wait_for_line("coordinator lost")
        workers[0].order("exit 5")
        agent.wait_for_line("worker failed")
        proxy.restore()
        again = server.wait_for_round(1, 1)
        wait_for_count(coordinator, 1)
        assert proxy.accepted >= 2
        proxy.cut()  # once more: all that is pending would be sent again
        agent.wait_for_line("coordinator lost", count=2)
        coordinator.wait_for_run("run", lambda run: run.agents[0].is_connected)
        again[0].order("exit 6")
        last = server.wait_for_round(2, 1)
        wait_for_count(coordinator, 2)
        exit_all(last)
        assert agent.wait() == 0
    assert coordinator.run("run").failures_count == 2
    assert records_left(cluster) == 0


@pytest.mark.slow
def test_records_count_once_through_a_restart_of_the_coordinator(cluster: Cluster) -> None:
    """The acknowledgement is lost, and the coordinator that gave it as well."""
    coordinator, server = cluster.coordinator(), cluster.worker_server()
    token = coordinator.create_token().text()
    with Proxy(coordinator.address) as proxy:
        agent = join_through(cluster, proxy, server, "--token", token, "--max-restarts", "3")
        (worker,) = server.wait_for(1)
        proxy.stall(down=True)
        worker.order("exit 5")
        wait_for_count(coordinator, 1)
        coordinator.kill()
        proxy.cut()
        proxy.restore()
        coordinator.restart()
        (again,) = server.wait_for_round(1, 1)
        again.order("exit 6")
        (last,) = server.wait_for_round(2, 1)
        wait_for_count(coordinator, 2)
        exit_all([last])
        assert agent.wait() == 0
    assert coordinator.run("run").failures_count == 2
    assert records_left(cluster) == 0


@pytest.mark.slow
def test_records_of_an_agent_that_died_first_come_with_the_next_one(cluster: Cluster) -> None:
    coordinator, server = cluster.coordinator(), cluster.worker_server()
    token = coordinator.create_token().text()
    options = ("--token", token, "--nproc-per-node", "2", "--max-restarts", "3")
    with Proxy(coordinator.address) as proxy:
        agent = join_through(cluster, proxy, server, *options)
        workers = server.wait_for(2)
        proxy.cut(refuse=True)
        agent.wait_for_line("coordinator lost")
        workers[0].order("exit 5")
        agent.wait_for_line("worker stopped")
        assert records_left(cluster) == 2
        agent.kill()
        assert coordinator.run("run").failures_count == 0
        proxy.restore()
        heir = join_through(cluster, proxy, server, *options)
        again = server.wait_for_round(1, 2)
        wait_for_count(coordinator, 2)
        exit_all(again)
        assert heir.wait() == 0
    assert coordinator.run("run").failures_count == 2
    assert records_left(cluster) == 0
