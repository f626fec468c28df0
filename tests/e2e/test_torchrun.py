"""torchrun with ``--rdzv-backend=drumbeat``: real torchruns, coordinators and workers."""

import signal
import time

import pytest

from tests.support.cluster import Cluster, Worker, exit_all
from tests.support.torchruns import START_S, Torchruns, kill_host
from tests.support.waiting import MS

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(300)]

GOES_ON_S = 6_000 * MS
ALL_END_S = 10_000 * MS


def worlds(workers: list[Worker]) -> set[tuple[str, str]]:
    return {(w.environment["WORLD_SIZE"], w.environment["MASTER_PORT"]) for w in workers}


def test_training_goes_on_after_a_killed_worker_and_no_restart_is_charged(cluster: Cluster) -> None:
    coordinator = cluster.coordinator()
    job = Torchruns(cluster, coordinator, "2", "--max-restarts", "2", "--nproc-per-node", "2")
    hosts = [job.start("name=red"), job.start("name=blue")]
    first = job.server.wait_for(4, START_S)
    assert [worker.rank for worker in first] == [0, 1, 2, 3]
    first[3].order("exit 3")
    second = job.server.wait_for(4, GOES_ON_S)
    assert [worker.rank for worker in second] == [0, 1, 2, 3]
    # A store of its own, which workers use without making one.
    assert len(worlds(first)) == len(worlds(second)) == 1
    assert worlds(first).isdisjoint(worlds(second))
    assert {w.environment["TORCHELASTIC_USE_AGENT_STORE"] for w in second} == {"True"}
    status = coordinator.run(job.run_id)
    assert status.restarts_used == 0
    assert {agent.name for agent in status.agents} == {"red", "blue"}
    shown = coordinator.operate("status", job.run_id)
    assert "restarts are counted by torchrun" in shown.stdout
    assert "Restarts are counted by torchrun" in coordinator.operate("why", job.run_id).stdout
    exit_all(second)
    assert [host.wait(START_S) for host in hosts] == [0, 0]
    assert "all workers succeeded" in coordinator.run(job.run_id).reason
    assert "exit code 3" in coordinator.operate("events", job.run_id).stdout


def test_a_lost_host_is_noticed_at_once_and_a_late_one_is_taken_in(cluster: Cluster) -> None:
    job = Torchruns(cluster, cluster.coordinator(), "1:2", "--max-restarts", "0")
    red, blue = job.start(), job.start()
    job.server.wait_for(2, START_S)
    kill_host(blue)
    began = time.monotonic()
    (alone,) = job.server.wait_for(1, GOES_ON_S)
    assert time.monotonic() - began < GOES_ON_S
    assert alone.environment["WORLD_SIZE"] == "1"
    late = job.start()
    both = job.server.wait_for(2, START_S)
    assert [worker.environment["WORLD_SIZE"] for worker in both] == ["2", "2"]
    exit_all(both)
    assert red.wait(START_S) == late.wait(START_S) == 0


def test_a_permanent_failure_ends_all(cluster: Cluster) -> None:
    coordinator = cluster.coordinator()
    job = Torchruns(cluster, coordinator, "3", "--max-restarts", "0")
    hosts = [job.start() for _ in range(3)]
    workers = job.server.wait_for(3, START_S)
    workers[1].order("exit 7")
    began = time.monotonic()
    assert [host.wait(START_S) for host in hosts] == [1, 1, 1]
    assert time.monotonic() - began < ALL_END_S
    status = coordinator.run(job.run_id)
    assert "rank 1" in status.reason
    assert "torchrun does not restart its workers" in status.reason
    assert "RendezvousClosedError" in "".join(host.stderr for host in hosts)


def test_training_goes_on_over_a_restart_of_the_coordinator(cluster: Cluster) -> None:
    coordinator = cluster.own_coordinator()
    job = Torchruns(cluster, coordinator, "2", "--max-restarts", "1")
    hosts = [job.start(), job.start()]
    workers = job.server.wait_for(2, START_S)
    coordinator.kill()
    coordinator.restart()
    coordinator.wait_for_run(
        job.run_id, lambda run: sum(a.is_connected for a in run.agents) == 2, START_S
    )
    assert job.server.is_quiet()
    workers[0].order("exit 1")
    second = job.server.wait_for(2, START_S)
    exit_all(second)
    assert [host.wait(START_S) for host in hosts] == [0, 0]


def test_a_host_that_lost_its_lease_joins_again(cluster: Cluster) -> None:
    coordinator = cluster.own_coordinator("--lease", "3s", "--heartbeat-interval", "1s")
    job = Torchruns(cluster, coordinator, "1:2", "--max-restarts", "0")
    hosts = [job.start(), job.start()]
    job.server.wait_for(2, START_S)
    hosts[1].send(signal.SIGSTOP)
    (alone,) = job.server.wait_for(1, START_S)
    assert alone.environment["WORLD_SIZE"] == "1"
    hosts[1].send(signal.SIGCONT)
    both = job.server.wait_for(2, START_S)
    assert [worker.environment["WORLD_SIZE"] for worker in both] == ["2", "2"]
    exit_all(both)
    assert [host.wait(START_S) for host in hosts] == [0, 0]


def test_access_is_that_of_agents(cluster: Cluster) -> None:
    coordinator = cluster.own_coordinator("--host", "0.0.0.0")
    token = cluster.private_file("token", coordinator.create_token().text())
    revoked = coordinator.create_token()
    coordinator.revoke(revoked)
    job = Torchruns(cluster, coordinator, "2", "--max-restarts", "0")
    stranger = job.start(env={"DRUMBEAT_TOKEN": revoked.text()})
    hosts = [job.start(f"token_file={token}"), job.start(env={"DRUMBEAT_TOKEN_FILE": token})]
    exit_all(job.server.wait_for(2, START_S))
    assert [host.wait(START_S) for host in hosts] == [0, 0]
    assert stranger.wait(START_S) == 1
    assert "RendezvousConnectionError" in stranger.stderr
    assert revoked.text() not in stranger.log()
