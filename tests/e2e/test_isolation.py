"""Many runs on one coordinator: what happens to one is no business of the others."""

import grpc
import pytest

from tests.support.cluster import DEADLINE_S, Cluster, Coordinator, Job, exit_all
from tests.support.nuisance import Nuisance


def sound_job(cluster: Cluster, coordinator: Coordinator) -> Job:
    return cluster.job(
        *("--nnodes", "2", "--max-restarts", "1"), coordinator=coordinator, run_id="sound"
    )


@pytest.mark.slow
def test_a_client_that_floods_and_breaks_rules_disturbs_nobody(cluster: Cluster) -> None:
    """A run starts, restarts and ends while somebody troubles its coordinator."""
    coordinator = cluster.coordinator()
    sound = sound_job(cluster, coordinator)
    with Nuisance(coordinator.address, victim_run="sound") as nuisance:
        nuisance.wait_for_a_turn(DEADLINE_S)
        agents = [sound.join(), sound.join()]
        sound.server.wait_for(2)[0].order("exit 1")
        second = sound.server.wait_for_round(1, 2)
        assert {worker.restart_count for worker in second} == {1}
        exit_all(second)
        assert [agent.wait() for agent in agents] == [0, 0]
    state = sound.state()
    assert state.verdict.is_success
    assert (state.round_id, state.restart_count) == (1, 1)
    assert {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.NOT_FOUND,
    } <= nuisance.refusals
    assert grpc.StatusCode.UNKNOWN not in nuisance.refusals
    assert grpc.StatusCode.INTERNAL not in nuisance.refusals
    assert coordinator.terminate() == 0
    assert "Traceback" not in coordinator.process.stderr
