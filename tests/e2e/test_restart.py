"""A worker fails: everybody restarts, until the budget is spent and the report says why."""

import errno
import os
import re
import signal
import socket

import pytest

from tests.support.cluster import LOOPBACK, Agent, Cluster, exit_all

pytestmark = pytest.mark.usefixtures("shared_coordinator")


def report_of(agent: Agent) -> str:
    """The report of a failed run, from its first line on."""
    match = re.search(r"^=+\n.*", agent.stderr, re.DOTALL | re.MULTILINE)
    assert match, agent.log()
    return match[0]


def bind_error(host: str, port: int) -> int:
    """What a plain bind of ``port`` meets; 0 if it works."""
    with socket.socket() as probe:
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno or -1
    return 0


def test_a_failed_worker_restarts_all_workers_everywhere(cluster: Cluster) -> None:
    """One of four exits badly: four new ones, after the old ones are gone, willing or not."""
    options = ("--nnodes", "2", "--nproc-per-node", "2", "--max-restarts", "3")
    job = cluster.job(*options, "--shutdown-timeout", "500ms")
    agents = [job.join(), job.join()]
    before = job.server.wait_for(4)
    grandchild = before[0].ask("spawn")
    before[1].ask("ignore SIGTERM")
    before[3].order("exit 7")
    after = job.server.wait_for_round(1, 4)
    assert [worker.rank for worker in after] == [0, 1, 2, 3]
    assert {worker.restart_count for worker in after} == {1}
    # No worker of a round is alive on a host when one of the next starts there.
    assert all(worker.is_gone for worker in before)
    cluster.wait_until_gone(grandchild)
    exit_all(after)
    assert [agent.wait() for agent in agents] == [0, 0]
    state = job.state()
    assert (state.verdict.is_success, state.restart_count, state.round_id) == (True, 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("agent_store", ["on", "off"])
@pytest.mark.parametrize("allowed", ["", "20000-20199"])
def test_every_round_has_a_fresh_master_port_where_none_but_its_store_listens(
    cluster: Cluster, agent_store: str, allowed: str
) -> None:
    """That of the agent does from the start, that of rank 0 when it wants."""
    job = cluster.job(
        *("--nnodes", "2", "--max-restarts", "3", "--agent-store", agent_store),
        *(("--port-range", allowed) if allowed else ()),
    )
    agents = [job.join(), job.join()]
    ports = []
    for round_id in range(3):
        workers = job.server.wait_for_round(round_id, 2)
        (port,) = {int(worker.environment["MASTER_PORT"]) for worker in workers}
        ports.append(port)
        assert [bind_error(host, port) for host in ("", LOOPBACK)] == [errno.EADDRINUSE] * 2
        if agent_store == "off":
            assert workers[0].ask(f"listen {port}") == ""
        socket.create_connection((LOOPBACK, port)).close()
        workers[1].order("exit 1" if round_id < 2 else "exit 0")
    assert len(set(ports)) == 3
    if allowed:
        assert all(20_000 <= port <= 20_199 for port in ports)
    workers[0].order("exit 0")
    assert [agent.wait() for agent in agents] == [0, 0]
    assert bind_error(LOOPBACK, ports[0]) == 0


def test_the_report_names_the_root_cause_first_with_its_error_and_then_the_victims(
    cluster: Cluster,
) -> None:
    """What a user has to know: host, rank, how it ended, message, traceback."""
    job = cluster.job("--nnodes", "2", "--nproc-per-node", "2")
    agents = job.join_in_order((), ())
    workers = job.server.wait_for(4)
    # Those that fail because they are stopped explain nothing, however they end.
    workers[0].ask("on SIGTERM 5")
    workers[3].ask("on SIGTERM 6")
    workers[2].ask("error the loss is not a number")
    workers[2].order("exit 42")
    assert [agent.wait() for agent in agents] == [1, 1]
    for agent in agents:
        report = report_of(agent)
        cause, _, victims = report.partition("Victims:")
        assert f"{job.server.command[0]} {job.server.address} FAILED" in cause
        assert "no restarts are allowed" in cause
        assert re.search(rf"host +: {re.escape(socket.gethostname())}\b", cause)
        assert re.search(r"rank +: 2 \(local rank 0, group rank 1, role default\)", cause)
        assert re.search(rf"ended by +: exit code 42 \(pid {workers[2].pid}\)", cause)
        assert re.search(r"message +: RuntimeError: the loss is not a number", cause)
        assert "in raise_error" in cause
        assert "Traceback (most recent call last):" in cause
        assert "3 of 4 workers" in victims
        # Its neighbour; those of other agents only did as they were told.
        assert re.search(r"rank 3 on .*, exit code 6, stopped by its agent", victims)
        assert "2 others stopped by their agents" in victims


def test_the_report_of_a_killed_worker_has_the_signal_and_the_memory_it_used(
    cluster: Cluster,
) -> None:
    """Its last words are not lost, either: workers write unbuffered, where their agent writes."""
    job = cluster.job("--max-restarts", "0")
    agent = job.join()
    (worker,) = job.server.wait_for(1)
    worker.ask("say my last words")
    os.kill(worker.pid, signal.SIGKILL)
    assert agent.wait() == 1
    assert agent.stdout == "my last words"
    report = report_of(agent)
    assert re.search(r"ended by +: SIGKILL \(pid \d+\)", report)
    assert re.search(r"s before, its process used \d.* of \d", report)


def test_a_program_that_cannot_be_started_fails_the_run_with_its_name(cluster: Cluster) -> None:
    """Executable for its checks, but with an interpreter that is not there."""
    script = cluster.directory / "train.sh"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    coordinator = cluster.coordinator()
    agent = cluster.agent(
        "--max-restarts", "3", "--no-python", str(script), coordinator=coordinator
    )
    assert agent.wait() == 1
    verdict = coordinator.run(cluster.run_id).verdict
    assert verdict.reason == (
        f"round 0 could not start: rank 0 on {socket.gethostname()}: cannot start {script}: "
        "its interpreter '/no/such/interpreter' does not exist"
    )
    assert (verdict.restart_count, verdict.round_id) == (0, 0), "restarts would meet the same"
    report = report_of(agent)
    assert "its interpreter '/no/such/interpreter' does not exist" in report
    assert "likely why: the workers' program could not be started" in report
