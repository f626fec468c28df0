"""Command lines that cannot work: one clear error, an exit code, and nothing left behind."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from drumbeat.coordinator.access.authority import FILE, Authority
from drumbeat.coordinator.journal.sqlite import SqliteFile
from tests.support.certificates import CertificateAuthority
from tests.support.channels import channel_to
from tests.support.cluster import LOOPBACK, exit_all

if TYPE_CHECKING:
    from tests.support.cluster import Agent, Cluster, Coordinator, Process

pytestmark = pytest.mark.e2e

SERVE = ("coordinator", "serve")


def is_serving(coordinator: Coordinator) -> bool:
    with channel_to(coordinator.address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=30)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def assert_refused(process: Process, code: int, *words: str) -> None:
    """One error of a few lines that says all of ``words``, and no traceback."""
    assert process.wait() == code, process.log()
    assert "Traceback" not in process.stderr
    errors = [line for line in process.stderr.splitlines() if not line.startswith("{")]
    assert 1 <= len(errors) <= 4, process.log()
    for word in words:
        assert word in "\n".join(errors), process.log()


# The coordinator.


def test_a_port_in_use_is_named(cluster: Cluster) -> None:
    with socket.create_server((LOOPBACK, 0)) as other:
        port = str(other.getsockname()[1])
        state = str(cluster.directory / "state")
        process = cluster.process("second", *SERVE, "--port", port, "--state-dir", state)
        assert_refused(process, 2, port, LOOPBACK, "in use", "--port")


def test_a_port_another_coordinator_has_is_in_use_too(cluster: Cluster) -> None:
    first = cluster.coordinator()
    state = str(cluster.directory / "other")
    process = cluster.process("second", *SERVE, "--port", str(first.port), "--state-dir", state)
    assert_refused(process, 2, str(first.port), "in use")
    assert is_serving(first)


def test_a_state_directory_belongs_to_one_coordinator(cluster: Cluster) -> None:
    first = cluster.coordinator()
    process = cluster.process("second", *SERVE, "--port", "0", "--state-dir", str(first.state_dir))
    assert_refused(process, 2, str(first.state_dir), "in use by another coordinator")
    assert is_serving(first)


def test_state_directories_that_cannot_be_used_are_named(cluster: Cluster) -> None:
    file = cluster.directory / "file"
    file.write_text("mine")
    corrupt = cluster.directory / "corrupt"
    corrupt.mkdir()
    (corrupt / "journal.sqlite3").write_text("no database, but long enough to be read\n" * 50)
    started = [
        (cluster.process(path.name, *SERVE, "--port", "0", "--state-dir", str(path)), words)
        for path, words in (
            (file, ("cannot be used", str(file))),
            (file / "below", ("cannot be used", str(file))),
            (Path("/proc/drumbeat"), ("cannot be used", "/proc/drumbeat")),
            (corrupt, ("cannot be read", "journal.sqlite3", "coordinator journal export")),
        )
    ]
    for process, words in started:
        assert_refused(process, 2, *words)
    assert file.read_text() == "mine"


def test_certificates_and_authorities_that_cannot_be_used_are_named(cluster: Cluster) -> None:
    authority = CertificateAuthority()
    certificate, key = authority.issue().write(cluster.directory)
    _, foreign = authority.issue().write(cluster.directory, "foreign")
    state = cluster.directory / "state"
    SqliteFile(state).close()
    Authority(state)
    (state / FILE).chmod(0o644)
    serve = (*SERVE, "--port", "0")
    mixed = cluster.process("mixed", *serve, "--tls-cert", certificate, "--tls-key", foreign)
    shared = cluster.process("shared", *serve, "--state-dir", str(state))
    whole = cluster.process("whole", *serve, "--tls-cert", certificate, "--tls-key", key)
    assert_refused(mixed, 2, f"--tls-key {foreign} does not belong to the --tls-cert")
    assert_refused(shared, 2, str(state / FILE), "0644", "chmod 600")
    whole.wait_for_line(r"coordinator ready at")
    whole.terminate()
    assert whole.wait() == 0


def test_an_address_that_others_reach_is_served(cluster: Cluster) -> None:
    bind = ("--host", "0.0.0.0", "--port", "0", "--state-dir", str(cluster.directory / "state"))
    allowed = cluster.process("open", *SERVE, *bind, "--insecure")
    allowed.wait_for_line(r"coordinator ready at 0\.0\.0\.0:\d+")
    allowed.terminate()
    assert allowed.wait() == 0


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
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    assert set(modes.values()) == {0o600}, modes


# The agent.


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


def bad_agents(cluster: Cluster, directory: Path) -> list[tuple[Agent, tuple[str, ...]]]:
    """Start agents with command lines that cannot work, all at once."""
    (directory / "file").write_text("")
    standalone = ("--standalone",)
    cases: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
        (("--coordinator", "h:1", "--run-id", "r", "--nnodes", "4:2", __file__), ("4:2", "MIN")),
        ((*standalone, "--nproc-per-node", "0", __file__), ("'0'", "--nproc-per-node")),
        (standalone, ("SCRIPT is missing",)),
        ((*standalone, "nowhere.py"), ("nowhere.py", "no such file")),
        ((*standalone, "--log-dir", str(directory / "file" / "x"), __file__), ("file/x",)),
        ((*standalone, "--log-dir", "/proc/drumbeat", __file__), ("/proc/drumbeat",)),
        (("--coordinator", "h:1", "--run-id", "..", __file__), ("--run-id", "'..'")),
        (("--coordinator", "h:99999", "--run-id", "r", __file__), ("h:99999", "--coordinator")),
        (("--coordinator", "h:1", "--nnodes", "2", __file__), ("--run-id is missing",)),
    ]
    return [(cluster.agent(*arguments), words) for arguments, words in cases]


def test_what_cannot_be_run_is_named(cluster: Cluster) -> None:
    for agent, words in bad_agents(cluster, cluster.directory):
        assert_refused(agent, 2, *words)


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
