"""A job of several replica groups, with real workers: what happens to one group is its own."""

import json
import os
import signal

import pytest

from tests.support.cluster import Cluster, Job, exit_all

pytestmark = pytest.mark.usefixtures("shared_coordinator")

ITERATING = ("-m", "tests.support.workers.iterating")
PRELOADED = """
import os, sys
group = os.environ["REPLICA_GROUP_ID"], os.environ["NUM_REPLICA_GROUPS"]
os.write(1, f"{group} {'heavy' in sys.modules} {os.environ['DRUMBEAT_RUN_ID']}\\n".encode())
"""


def a_job(cluster: Cluster, count: int, *options: str) -> list[Job]:
    """Return the groups of a job, whose id is that of the cluster, on a coordinator of its own."""
    coordinator = cluster.own_coordinator()
    return [
        cluster.job("--replica-group", f"{i}/{count}", *options, coordinator=coordinator)
        for i in range(count)
    ]


def asked(job: Job, *arguments: str) -> str:
    """What an operator is told."""
    process = job.coordinator.operate(*arguments)
    assert process.wait() == 0, process.log()
    return process.stdout


def restarts(job: Job) -> list[int]:
    """How many restarts each group has used, by its index."""
    document = json.loads(asked(job, "status", job.run_id, "-o", "json"))
    return [group["restarts_used"] for group in document["groups"]]


@pytest.mark.slow
def test_a_worker_that_is_killed_restarts_its_group_and_no_other(cluster: Cluster) -> None:
    groups = a_job(cluster, 3, "--nproc-per-node", "2", "--max-restarts", "1")
    agents = [group.join("--name", f"host{i}") for i, group in enumerate(groups)]
    workers = [group.server.wait_for(2) for group in groups]
    for index, both in enumerate(workers):
        for worker in both:
            told = worker.environment
            assert (told["REPLICA_GROUP_ID"], told["NUM_REPLICA_GROUPS"]) == (str(index), "3")
            assert told["DRUMBEAT_RUN_ID"] == f"{cluster.run_id}.{index}"
            assert told["WORLD_SIZE"] == "2"
    os.kill(workers[1][0].pid, signal.SIGKILL)
    again = groups[1].server.wait_for_round(1, 2)
    assert restarts(groups[0]) == [0, 1, 0]
    asked(groups[0], "drain", "host2", "--reason", "memory errors")
    assert agents[2].wait() == 0, "the group waits for another host"
    assert not any(worker.is_gone for worker in (*workers[0], *again))
    assert all(group.server.is_quiet() for group in groups)
    exit_all(workers[0])
    assert agents[0].wait() == 0, "it waits for no other group"
    os.kill(again[1].pid, signal.SIGKILL)
    assert agents[1].wait() == 1, "no restart of its own is left"
    listed = asked(groups[0], "status")
    assert "3 groups: 1 succeeded, 1 worker failed, 1 gathering" in listed
    asked(groups[0], "stop", cluster.run_id)
    assert asked(groups[0], "verdict", cluster.run_id) == "succeeded"


@pytest.mark.slow
def test_too_few_groups_end_the_job(cluster: Cluster) -> None:
    groups = a_job(cluster, 2, "--min-groups", "2")
    agents = [group.join() for group in groups]
    workers = [group.server.wait_for(1)[0] for group in groups]
    workers[1].order("exit 7")
    assert [agent.wait() for agent in agents] == [1, 1]
    workers[0].wait_gone()
    said = f"1 of 2 replica groups of {cluster.run_id} ended without success"
    assert said in agents[0].stderr
    assert "--min-groups is 2" in agents[0].stderr
    assert "exit code 7" in agents[1].stderr


def test_workers_of_a_group_are_preloaded(cluster: Cluster) -> None:
    (cluster.directory / "heavy.py").write_text("")
    script = cluster.directory / "work.py"
    script.write_text(PRELOADED)
    options = ("--replica-group", "1/2", "--preload", "heavy", str(script))
    agent = cluster.agent(*options, coordinator=cluster.coordinator())
    assert agent.wait() == 0
    assert agent.stdout.splitlines() == [f"('1', '2') True {cluster.run_id}.1"]


@pytest.mark.slow
def test_a_function_starts_again_in_the_processes_of_its_group(cluster: Cluster) -> None:
    coordinator = cluster.coordinator()
    text = json.dumps({"faults": {"1:0": "raise"}})
    options = ("--nproc-per-node", "2", "--replica-group")
    failing = cluster.agent(*options, "0/2", *ITERATING, text, coordinator=coordinator)
    other = cluster.agent(*options, "1/2", *ITERATING, '{"faults": {}}', coordinator=coordinator)
    assert [failing.wait(), other.wait()] == [0, 0], cluster.logs()
    repeated = [
        coordinator.run(f"{cluster.run_id}.{index}").iterations_restarted for index in (0, 1)
    ]
    assert repeated == [1, 0]


@pytest.mark.slow
def test_an_unhealthy_host_keeps_its_own_group_waiting(cluster: Cluster) -> None:
    groups = a_job(cluster, 2)
    ill = groups[1].join("--name", "ill", "--health-check", "false")
    ill.wait_for_line("host unhealthy")
    well = groups[0].join()
    (worker,) = groups[0].server.wait_for(1)
    shown = asked(groups[0], "status", cluster.run_id)
    assert "UNHEALTHY" in shown
    assert groups[1].server.is_quiet()
    exit_all([worker])
    assert well.wait() == 0
    ill.terminate()
    ill.wait()
