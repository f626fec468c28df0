"""``drumbeat.client``: launchers in threads of the test, with a real coordinator."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
import structlog

from drumbeat.client import (
    Assignment,
    Client,
    ClientError,
    Disconnected,
    Drained,
    Refused,
    RunOver,
    WorkerFailure,
)
from tests.support.cluster import Cluster, Coordinator
from tests.support.waiting import MS, wait_until_sync

pytestmark = pytest.mark.usefixtures("shared_coordinator")

WAIT_S = 20_000 * MS

# Its poller is one for all loops of this process; made here, it is no leak of a test.
grpc.aio.init_grpc_aio()


@pytest.fixture(autouse=True)
def _log() -> Iterator[None]:
    """A program that has a log of its own, which a client leaves as it is."""
    structlog.configure()
    yield
    structlog.reset_defaults()


class Hosts:
    """Clients of one run; all that are left are closed in the end."""

    def __init__(self, coordinator: Coordinator, run_id: str) -> None:
        self.coordinator, self.run_id = coordinator, run_id
        self.clients: list[Client] = []

    def join(self, name: str, nodes: tuple[int, int] = (2, 2), **settings: Any) -> Client:
        given = {"name": name, "last_call": 100.0, **settings}
        client = Client(self.coordinator.address, self.run_id, "mylauncher", nodes, **given)
        self.clients.append(client)
        return client

    def run(self, *clients: Client) -> list[Assignment]:
        with ThreadPoolExecutor() as pool:
            parts = list(pool.map(lambda client: client.next_assignment(WAIT_S), clients))
        for client in clients:
            client.report_running()
        return parts


@pytest.fixture
def hosts(cluster: Cluster) -> Iterator[Hosts]:
    made = Hosts(cluster.coordinator(), cluster.run_id)
    yield made
    for client in made.clients:
        client.close()


def operate(cluster: Cluster, hosts: Hosts, *command: str) -> None:
    address = ("--coordinator", hosts.coordinator.address)
    assert cluster.process("operator", "coordinator", *command, *address).wait() == 0


def until_stopped(client: Client) -> None:
    wait_until_sync(lambda: client.is_stop_wanted, WAIT_S)


def test_hosts_have_ranks_and_a_store_that_listens_at_once(hosts: Hosts) -> None:
    red, blue = hosts.join("red", nproc_per_node=2), hosts.join("blue", nproc_per_node=3)
    parts = sorted(hosts.run(red, blue), key=lambda part: part.group_rank)
    assert [part.world_size for part in parts] == [5, 5]
    assert {parts[1].rank_first} <= {2, 3}
    assert len({(part.master_addr, part.master_port) for part in parts}) == 1
    socket.create_connection((parts[0].master_addr, parts[0].master_port), WAIT_S).close()
    status = hosts.coordinator.run(hosts.run_id)
    assert {(agent.name, agent.local_world_size) for agent in status.agents} == {
        ("red", 2),
        ("blue", 3),
    }
    for client in (red, blue):
        client.report_succeeded()
    verdicts = [client.wait_for_end(WAIT_S) for client in (red, blue)]
    assert all(verdict is not None and verdict.is_success for verdict in verdicts)


def test_a_failure_makes_another_round_and_is_in_the_report(hosts: Hosts) -> None:
    red, blue = hosts.join("red"), hosts.join("blue")
    first = hosts.run(red, blue)
    assert not red.is_stop_wanted
    red.report_failed(WorkerFailure(exit_code=-9, pid=77, message="gone"))
    until_stopped(blue)
    second = hosts.run(red, blue)
    assert {part.round_id for part in second} == {first[0].round_id + 1}
    assert {part.restarts_used for part in second} == {0}
    assert "SIGKILL" in second[0].reason
    blue.report_failed(WorkerFailure(message="broken for good"), is_final=True)
    until_stopped(red)
    with pytest.raises(RunOver, match="broken for good") as over:
        red.next_assignment(WAIT_S)
    assert over.value.verdict.cause == "WORKER_FAILED"
    assert blue.wait_for_end(WAIT_S) == over.value.verdict


def test_a_host_that_leaves_makes_the_others_go_on(hosts: Hosts) -> None:
    red, blue = hosts.join("red", (1, 2)), hosts.join("blue", (1, 2))
    hosts.run(red, blue)
    blue.close("its lease is up")
    blue.close("twice")
    until_stopped(red)
    (alone,) = hosts.run(red)
    assert alone.world_size == 1
    assert not red.is_stop_wanted
    green = hosts.join("green", (1, 2))
    until_stopped(red)
    assert [part.world_size for part in hosts.run(red, green)] == [2, 2]


def test_a_launcher_that_wants_a_round_unasked_gets_one(hosts: Hosts) -> None:
    red, blue = hosts.join("red"), hosts.join("blue")
    hosts.run(red, blue)
    with ThreadPoolExecutor() as pool:
        again = pool.submit(red.next_assignment, WAIT_S)
        until_stopped(blue)
        blue.next_assignment(WAIT_S)
        assert "did not say why" in again.result(WAIT_S).reason


def test_waits_end_at_their_time_and_settings_are_checked(hosts: Hosts) -> None:
    red = hosts.join("red")
    with pytest.raises(TimeoutError):
        red.next_assignment(0.2)
    assert red.wait_for_end(0.1) is None
    assert not red.is_stop_wanted
    with pytest.raises(ValueError, match="nproc_per_node: 0"):
        hosts.join("x", nproc_per_node=0)
    red.close()
    with pytest.raises(ClientError, match="closed"):
        red.next_assignment(WAIT_S)


@pytest.mark.slow
def test_each_end_has_its_error(hosts: Hosts, cluster: Cluster) -> None:
    with pytest.raises(RunOver, match="join timeout") as over:
        hosts.join("red", join_timeout=1.0).next_assignment(WAIT_S)
    assert over.value.verdict.cause == "AGENTS_MISSING"
    hosts.run_id = f"{cluster.run_id}-2"
    blue, green = hosts.join("blue"), hosts.join("green")
    hosts.run(blue, green)
    with pytest.raises(Refused, match="minimum"):
        hosts.join("other", (1, 2)).next_assignment(WAIT_S)
    operate(cluster, hosts, "stop", hosts.run_id)
    for client in (green, blue):
        until_stopped(client)
    with ThreadPoolExecutor() as pool:
        for wait in [pool.submit(client.next_assignment, WAIT_S) for client in (green, blue)]:
            with pytest.raises(RunOver, match="stopped"):
                wait.result(WAIT_S)
    hosts.run_id = f"{cluster.run_id}-3"
    hosts.run(drained := hosts.join("drained", (1, 2), last_call=0.1))
    operate(cluster, hosts, "drain", "drained", "--run-id", hosts.run_id)
    until_stopped(drained)
    with pytest.raises(Drained):
        drained.next_assignment(WAIT_S)


def test_a_coordinator_that_is_not_there_is_waited_for_as_long_as_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as place:
        port = place.getsockname()[1]
    with (
        Client(f"127.0.0.1:{port}", "x", "mylauncher", (1, 1), join_timeout=0.5) as client,
        pytest.raises(Disconnected, match="no coordinator answered"),
    ):
        client.next_assignment(WAIT_S)
