"""An operator ends a job that trains: real workers, real exit codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.cluster import Cluster

pytestmark = pytest.mark.e2e


def test_a_job_that_is_stopped_ends_everywhere_with_who_and_why(cluster: Cluster) -> None:
    job = cluster.job("--nnodes", "2", "--nproc-per-node", "1")
    agents = job.join_in_order((), ())
    workers = job.server.wait_for(2)
    stop = job.coordinator.operate("stop", job.run_id, "--reason", "wrong data")
    assert stop.wait() == 0
    assert [agent.wait() for agent in agents] == [4, 4]
    for worker in workers:
        worker.wait_gone()
    for agent in agents:
        assert f"run '{job.run_id}' was stopped by " in agent.stderr
        assert ": wrong data" in agent.stderr
    forget = job.coordinator.operate("forget", job.run_id)
    assert forget.wait() == 0
