"""Many runs on one coordinator: what happens to one is no business of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest

from tests.support.cluster import DEADLINE_S, exit_all
from tests.support.nuisance import Nuisance

if TYPE_CHECKING:
    from tests.support.cluster import Cluster, Coordinator, Job

pytestmark = pytest.mark.e2e


def sound_job(cluster: Cluster, coordinator: Coordinator) -> Job:
    return cluster.job(
        *("--nnodes", "2", "--max-restarts", "1"), coordinator=coordinator, run_id="sound"
    )


def test_a_failing_run_and_a_hanging_run_leave_another_one_alone(cluster: Cluster) -> None:
    """Three runs, one coordinator; the sound one restarts and ends as if it were alone."""
    coordinator = cluster.coordinator("--heartbeat-interval", "0.2", "--lease", "2")
    sound = sound_job(cluster, coordinator)
    failing = cluster.job(coordinator=coordinator, run_id="failing")
    hanging = cluster.job("--join-timeout", "4s", coordinator=coordinator, run_id="hanging")
    agents = [sound.join(), sound.join()]
    bad, frozen = failing.join(), hanging.join()
    first = sound.server.wait_for(2)
    hanging.server.wait_for(1)
    frozen.stop()
    failing.server.wait_for(1)[0].order("exit 1")
    assert bad.wait() == 1
    first[1].order("exit 1")
    second = sound.server.wait_for_round(1, 2)
    assert {worker.restart_count for worker in second} == {1}
    # The frozen one is given up, and its run with it, while the sound one runs.
    state = coordinator.wait_for_run("hanging", lambda run: run.HasField("verdict"))
    assert not state.verdict.is_success
    assert not any(worker.is_gone for worker in second)
    exit_all(second)
    assert [agent.wait() for agent in agents] == [0, 0]
    state = sound.state()
    assert (state.round_id, state.restart_count, state.failures_count) == (1, 1, 1)
    frozen.cont()
    assert frozen.wait() == 1
    assert "run 'hanging' gave this agent up" in frozen.stderr


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
