"""The command line with real workers: what is started, with which arguments, and alone."""

import signal

import pytest

from tests.support.cluster import Cluster, exit_all

MODULE = "tests.support.workers.steered"


def test_a_module_gets_everything_after_its_name(cluster: Cluster) -> None:
    """Even what looks like an option of ours, and whatever a shell would break apart."""
    server = cluster.worker_server()
    arguments = ["--nnodes", "7", "-m", "--", "two words", "", "ü", "--help"]
    agent = cluster.agent("--standalone", "-m", MODULE, server.address, *arguments)
    (worker,) = server.wait_for(1)
    assert worker.argv[1:] == [server.address, *arguments]
    worker.order("exit 0")
    assert agent.wait() == 0


def test_a_standalone_run_restarts_and_succeeds(cluster: Cluster) -> None:
    """One command, no coordinator elsewhere, all the same promises."""
    server = cluster.worker_server()
    options = ("--standalone", "--nproc-per-node", "2", "--max-restarts", "1")
    agent = cluster.agent(*options, *server.command)
    first = server.wait_for(2)
    first[1].order("exit 1")
    second = server.wait_for_round(1, 2)
    assert all(worker.is_gone for worker in first)
    assert {worker.restart_count for worker in second} == {1}
    ports = {worker.environment["MASTER_PORT"] for worker in (*first, *second)}
    assert len(ports) == 2
    exit_all(second)
    assert agent.wait() == 0


@pytest.mark.parametrize(
    ("signum", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"]
)
def test_a_standalone_run_ends_with_its_signal(
    cluster: Cluster, signum: int, exit_code: int
) -> None:
    """Ctrl-C: its workers are gone when the prompt is back."""
    server = cluster.worker_server()
    agent = cluster.agent("--standalone", "--nproc-per-node", "2", *server.command)
    workers = server.wait_for(2)
    agent.send(signum)
    assert agent.wait() == exit_code
    assert all(worker.is_gone for worker in workers)
    cluster.wait_until_alone()


def test_an_agent_within_a_worker_has_a_run_of_its_own(cluster: Cluster) -> None:
    """Launchers nest: nothing of the outer run leaks into the inner one."""
    server = cluster.worker_server()
    inner = ("-m", "drumbeat.agent", "join", "--standalone", *server.command)
    agent = cluster.agent(
        *("--standalone", "--nproc-per-node", "2", *inner),
        env={"DRUMBEAT_MAX_RESTARTS": "2", "DRUMBEAT_RUN_ID": "outer"},
    )
    workers = server.wait_for(2)
    for worker in workers:
        assert (worker.rank, worker.environment["WORLD_SIZE"]) == (0, "1")
        assert worker.environment["TORCHELASTIC_MAX_RESTARTS"] == "0"
        assert worker.environment["DRUMBEAT_RUN_ID"] != "outer"
    assert len({worker.environment["DRUMBEAT_RUN_ID"] for worker in workers}) == 2
    assert len({worker.environment["MASTER_PORT"] for worker in workers}) == 2
    exit_all(workers)
    assert agent.wait() == 0
