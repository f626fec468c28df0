"""Three hosts with eight workers each: one fails, 23 fail because of it, and the report knows."""

import time

import pytest

from drumbeat.v1 import failure_pb2
from tests.support.cluster import Agent, Cluster, Job
from tests.support.steering import Worker

HOSTS, WORKERS = 3, 8
WORLD = HOSTS * WORKERS
CULPRIT = 10
"""Rank of the one; on the second host."""
HOUR_S = 3600


def started(cluster: Cluster) -> tuple[Job, list[Agent], list[Worker]]:
    job = cluster.job(
        *("--nnodes", str(HOSTS), "--nproc-per-node", str(WORKERS)),
        # Long, because a test stops an agent for a while.
        coordinator=cluster.coordinator("--lease", "60s"),
    )
    agents = job.join_in_order(*[()] * HOSTS)
    return job, agents, job.server.wait_for(WORLD)


def foresee_broken_connections(workers: list[Worker], ranks: tuple[int, ...]) -> None:
    """Let workers record now what they will meet when a peer is gone."""
    for rank in ranks:
        workers[rank].ask(f"error-at {int(time.time())} connection closed by peer")


def check(verdict: failure_pb2.Verdict) -> None:
    report = verdict.report
    (cause,) = report.root_causes
    assert cause.worker.rank == CULPRIT
    assert cause.message == "RuntimeError: no such shard"
    assert cause.explanation == "the program raised an exception, see message"
    assert (report.victims_count, report.world_size) == (WORLD - 1, WORLD)
    assert CULPRIT not in [record.worker.rank for record in report.victims]
    assert f"rank {CULPRIT} on" in verdict.reason


@pytest.mark.slow
def test_the_one_is_named_though_its_clock_is_an_hour_ahead(cluster: Cluster) -> None:
    job, agents, workers = started(cluster)
    culprit = workers[CULPRIT]
    victims = (0, 5, 11, 12, 16, 23)
    foresee_broken_connections(workers, victims)
    for rank in victims:
        workers[rank].ask("on SIGTERM 1")  # they fail as if by themselves, when they are stopped
    culprit.ask(f"error-at {int(time.time()) + HOUR_S} no such shard")
    culprit.order("exit 1")
    assert [agent.wait() for agent in agents] == [1] * HOSTS
    check(job.state().verdict)
    for agent in agents:
        cause, _, rest = agent.stderr.partition("Victims: ")
        assert f"rank      : {CULPRIT} (local rank 2, group rank 1" in cause
        assert "likely why: the program raised an exception" in cause
        assert rest.startswith(f"{WORLD - 1} of {WORLD} workers")
    # Whoever comes later finds it, also after another life of the coordinator.
    job.coordinator.kill()
    job.coordinator.restart()
    check(job.state().verdict)
