"""A coordinator whose disk is full for a while: no worker notices, and nothing is lost."""

from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.channels import channel_to
from tests.support.cluster import DEADLINE_S, Cluster, Coordinator, exit_all
from tests.support.full_disk import no_room
from tests.support.waiting import wait_until_sync

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def health(coordinator: Coordinator) -> int:
    with channel_to(coordinator.address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        response = stub.Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE_S)
        return int(response.status)


@pytest.mark.slow
def test_a_full_disk_delays_a_restart_and_costs_nothing(cluster: Cluster) -> None:
    job = cluster.job("--nnodes", "2", "--max-restarts", "3")
    agents = [job.join(), job.join()]
    workers = job.server.wait_for(2)
    coordinator = job.coordinator
    coordinator.wait_for_run("run", lambda run: [a.is_connected for a in run.agents] == [True] * 2)
    assert health(coordinator) == SERVING
    with no_room(coordinator):
        workers[0].ask("error bad luck")
        workers[0].order("exit 7")
        coordinator.process.wait_for_line("nothing is decided until the journal can be written")
        assert health(coordinator) == NOT_SERVING
        assert coordinator.run("run").restart_count == 0, "readers see what is on the disk"
        late = cluster.agent("--no-python", "true", coordinator=coordinator, run_id="late")
        assert workers[1].ask("say still here") == ""
    coordinator.process.wait_for_line("the journal can be written again")
    again = job.server.wait_for_round(1, 2)
    wait_until_sync(lambda: health(coordinator) == SERVING, DEADLINE_S)
    assert {worker.restart_count for worker in again} == {1}
    run = coordinator.wait_for_run("run", lambda run: run.failures_count > 0)
    assert (run.failures_count, run.restart_count, run.round_id) == (1, 1, 1)
    assert [agent.is_running for agent in agents] == [True, True]
    assert not any("coordinator lost" in agent.stderr for agent in agents), "sessions are kept"
    assert late.wait() == 0, "it came while nothing was decided, and waited"
    exit_all(again)
    assert [agent.wait() for agent in agents] == [0, 0]
    assert job.state().verdict.is_success
