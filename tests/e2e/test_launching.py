"""The command line with real workers: what is started, with which arguments, and alone."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.support.cluster import exit_all

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.cluster import Cluster

pytestmark = pytest.mark.e2e

MODULE = "tests.support.workers.steered"


def test_everything_after_the_script_is_the_scripts(cluster: Cluster) -> None:
    """Even what looks like an option of ours, and whatever a shell would break apart."""
    server = cluster.worker_server()
    script, address = server.command
    arguments = ["--nnodes", "7", "-m", "--", "two words", "", "ü", "--help"]
    agent = cluster.agent("--standalone", script, address, *arguments)
    (worker,) = server.wait_for(1)
    assert worker.argv == [script, address, *arguments]
    worker.order("exit 0")
    assert agent.wait() == 0


def test_a_module_is_run_as_python_runs_it(cluster: Cluster) -> None:
    server = cluster.worker_server()
    agent = cluster.agent("--standalone", "-m", MODULE, server.address, "--epochs", "3")
    (worker,) = server.wait_for(1)
    assert worker.argv[1:] == [server.address, "--epochs", "3"]
    worker.order("exit 0")
    assert agent.wait() == 0


def test_a_program_of_its_own_is_run_without_python(cluster: Cluster) -> None:
    """Found on PATH, as a shell would; its output is the agent's."""
    command = ("sh", "-c", 'echo "rank $RANK of $WORLD_SIZE, $0 $1"', "first", "second word")
    agent = cluster.agent("--standalone", "--nproc-per-node", "2", "--no-python", *command)
    assert agent.wait() == 0
    assert sorted(agent.stdout.splitlines()) == [
        "rank 0 of 2, first second word",
        "rank 1 of 2, first second word",
    ]


def test_what_a_worker_writes_arrives_unbuffered(cluster: Cluster) -> None:
    """The last words of a worker that is killed are not lost."""
    server = cluster.worker_server()
    agent = cluster.agent("--standalone", *server.command)
    (worker,) = server.wait_for(1)
    worker.ask("say my last words")
    worker.order("kill SIGKILL")
    assert agent.wait() == 1
    assert agent.stdout == "my last words"


def test_options_may_come_from_the_environment_and_arguments_win(cluster: Cluster) -> None:
    job = cluster.job()
    agent = cluster.agent(
        *("--nproc-per-node", "2", *job.server.command),
        env={
            "DRUMBEAT_COORDINATOR": job.coordinator.address,
            "DRUMBEAT_RUN_ID": "of-the-environment",
            "DRUMBEAT_NPROC_PER_NODE": "5",
            "DRUMBEAT_MAX_RESTARTS": "3",
            "DRUMBEAT_ROLE": "reader",
        },
    )
    workers = job.server.wait_for(2)
    for worker in workers:
        assert worker.environment["DRUMBEAT_RUN_ID"] == "of-the-environment"
        assert worker.environment["LOCAL_WORLD_SIZE"] == "2"
        assert worker.environment["TORCHELASTIC_MAX_RESTARTS"] == "3"
        assert worker.environment["ROLE_NAME"] == "reader"
    exit_all(workers)
    assert agent.wait() == 0


def test_torchruns_spellings_with_underscores_work(cluster: Cluster) -> None:
    job = cluster.job()
    agent = cluster.agent(
        *("--coordinator", job.coordinator.address, "--rdzv_id", "old-habit"),
        *("--nproc_per_node", "2", "--max_restarts=1", "--shutdown_timeout", "3"),
        *("--master_addr", "localhost", *job.server.command),
    )
    workers = job.server.wait_for(2)
    assert {worker.environment["TORCHELASTIC_MAX_RESTARTS"] for worker in workers} == {"1"}
    assert {worker.environment["MASTER_ADDR"] for worker in workers} == {"localhost"}
    exit_all(workers)
    assert agent.wait() == 0
    assert job.coordinator.run("old-habit").verdict.is_success


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


def test_a_standalone_run_that_fails_reports_and_exits_with_1(cluster: Cluster) -> None:
    server = cluster.worker_server()
    agent = cluster.agent("--standalone", "--nproc-per-node", "2", *server.command)
    workers = server.wait_for(2)
    workers[0].ask("error out of patience")
    workers[0].order("exit 9")
    assert agent.wait() == 1
    workers[1].wait_gone()
    assert "exit code 9" in agent.stderr
    assert "RuntimeError: out of patience" in agent.stderr


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


def test_a_killed_standalone_agent_leaves_no_worker(cluster: Cluster) -> None:
    server = cluster.worker_server()
    agent = cluster.agent("--standalone", *server.command)
    (worker,) = server.wait_for(1)
    worker.ask("spawn")
    agent.kill()
    worker.wait_gone()
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


def test_files_of_workers_are_kept_in_the_log_directory(cluster: Cluster, tmp_path: Path) -> None:
    """``<log_dir>/<run>_…/attempt_<round>/<local rank>/error.json``, as torchrun lays it out."""
    server = cluster.worker_server()
    logs = tmp_path / "made" / "on demand"
    options = ("--standalone", "--run-id", "kept", "--log-dir", str(logs))
    agent = cluster.agent(*options, *server.command)
    (worker,) = server.wait_for(1)
    worker.ask("error kept for later")
    worker.order("exit 1")
    assert agent.wait() == 1
    (kept,) = logs.glob("kept_*/attempt_0/0/error.json")
    assert "kept for later" in kept.read_text()
