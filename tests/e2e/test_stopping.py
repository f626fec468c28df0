"""Signals to an agent: those that end it, those that are for its workers, and a second one."""

import os
import signal

import pytest

from tests.support.cluster import Cluster
from tests.support.status import RunStatus

pytestmark = pytest.mark.usefixtures("shared_coordinator")


def has_left(run: RunStatus) -> bool:
    return any("ended by signal" in event.reason for event in run.history)


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_kills_workers_that_ignore_the_first(
    cluster: Cluster, second: signal.Signals
) -> None:
    job = cluster.job("--nproc-per-node", "2", "--shutdown-timeout", "10m")
    agent = job.join()
    workers = job.server.wait_for(2)
    for worker in workers:
        worker.ask("ignore SIGINT")
        worker.ask("ignore SIGTERM")
    grandchild = workers[0].ask("spawn")
    os.kill(agent.pid, signal.SIGINT)
    job.coordinator.wait_for_run(job.run_id, has_left)
    # They have survived it, or would not answer.
    assert [worker.ask("say here") for worker in workers] == ["", ""]
    os.kill(agent.pid, second)
    assert agent.wait() == 128 + signal.SIGINT
    for worker in workers:
        worker.wait_gone()
    cluster.wait_until_gone(grandchild)


def test_the_first_signal_leaves_workers_their_stop_timeout_and_no_more(cluster: Cluster) -> None:
    job = cluster.job("--nproc-per-node", "2", "--shutdown-timeout", "500ms")
    agent = job.join()
    stubborn, clean = job.server.wait_for(2)
    stubborn.ask("ignore SIGTERM")
    clean.ask("on SIGTERM 0")
    os.kill(agent.pid, signal.SIGTERM)
    assert agent.wait() == 128 + signal.SIGTERM
    stubborn.wait_gone()


def test_a_batch_systems_warning_goes_to_every_worker_and_ends_no_agent(cluster: Cluster) -> None:
    """They save their state and end well, which is a success."""
    job = cluster.job("--nproc-per-node", "2")
    agent = job.join()
    first, second = job.server.wait_for(2)
    first.ask("on SIGUSR1 0")
    second.ask("ignore SIGUSR1")
    second.ask("on SIGUSR2 0")
    job.wait_for_state(0, "RUNNING")
    os.kill(agent.pid, signal.SIGUSR1)
    first.wait_gone()
    os.kill(agent.pid, signal.SIGUSR2)
    assert agent.wait() == 0
    events = [line["event"] for line in agent.log_lines()]
    assert events.count("signal forwarded") == 2


def test_a_signal_that_was_asked_for_ends_the_agent_and_reaches_its_workers(
    cluster: Cluster,
) -> None:
    options = ("--signals-to-handle", "SIGUSR1,SIGTERM", "--shutdown-timeout", "10m")
    job = cluster.job(*options)
    agent = job.join()
    (worker,) = job.server.wait_for(1)
    worker.ask("ignore SIGTERM")
    job.wait_for_state(0, "RUNNING")
    os.kill(agent.pid, signal.SIGUSR1)
    assert agent.wait() == 128 + signal.SIGUSR1, "the worker did not ignore this one"
    worker.wait_gone()
