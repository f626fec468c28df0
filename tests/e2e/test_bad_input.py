"""Command lines that cannot work: one clear error, an exit code, and nothing left behind."""

import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.channels import channel_to
from tests.support.cluster import LOOPBACK, Cluster, Coordinator, exit_all
from tests.support.processes import assert_refused

SERVE = ("coordinator", "serve")


def is_serving(coordinator: Coordinator) -> bool:
    with channel_to(coordinator.address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=30)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


# The coordinator.


def test_a_port_in_use_is_named(cluster: Cluster) -> None:
    with socket.create_server((LOOPBACK, 0)) as other:
        port = str(other.getsockname()[1])
        state = str(cluster.directory / "state")
        process = cluster.process("second", *SERVE, "--port", port, "--state-dir", state)
        assert_refused(process, 2, port, LOOPBACK, "in use", "--port")


def test_a_state_directory_belongs_to_one_coordinator(cluster: Cluster) -> None:
    first = cluster.coordinator()
    process = cluster.process("second", *SERVE, "--port", "0", "--state-dir", str(first.state_dir))
    assert_refused(process, 2, str(first.state_dir), "in use by another coordinator")
    assert is_serving(first)


def test_all_that_a_coordinator_writes_is_private(cluster: Cluster) -> None:
    previous = os.umask(0)
    try:
        job = cluster.job()
    finally:
        os.umask(previous)
    agent = job.join()
    exit_all(job.server.wait_for(1))
    assert agent.wait() == 0
    directory: Path = job.coordinator.state_dir
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    paths = [*directory.rglob("*")]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in paths}
    assert {modes[path] for path in paths if path.is_file()} == {0o600}, modes
    assert {modes[path] for path in paths if path.is_dir()} <= {0o700}, modes


# The agent.


@pytest.mark.slow
def test_a_coordinator_that_is_not_there_is_named(cluster: Cluster) -> None:
    with socket.create_server((LOOPBACK, 0)) as mute:  # accepts, and never says a word
        with socket.create_server((LOOPBACK, 0)) as gone:
            refusing = f"{LOOPBACK}:{gone.getsockname()[1]}"
        places = (refusing, "no-such-host.invalid:29400", f"{LOOPBACK}:{mute.getsockname()[1]}")
        agents = [
            cluster.agent("--coordinator", place, "--join-timeout", "2s", __file__)
            for place in places
        ]
        for agent, place in zip(agents, places, strict=True):
            assert_refused(agent, 3, f"no coordinator answered at {place} within 2 s")


@pytest.mark.slow
def test_another_spec_than_the_runs_is_refused_with_both_values(cluster: Cluster) -> None:
    job = cluster.job("--nnodes", "2")
    first = job.join()
    first.wait_for_line("standing by")
    other = job.join("--max-restarts", "7", "--join-timeout", "9m")
    assert_refused(other, 2, "--max-restarts", "0", "7", "600", "540", "--run-id")
    assert first.is_running
    second = job.join()
    exit_all(job.server.wait_for(2))
    assert [first.wait(), second.wait()] == [0, 0]
    assert is_serving(job.coordinator)
