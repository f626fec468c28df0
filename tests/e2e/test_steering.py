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


def test_one_of_three_is_drained_and_the_others_train_on(cluster: Cluster) -> None:
    job = cluster.job("--nnodes", "2:3", "--nproc-per-node", "1", "--last-call", "1h")
    agents = job.join_in_order(("--name", "a"), ("--name", "b"), ("--name", "c"))
    workers = job.server.wait_for(3)
    drain = job.coordinator.operate("drain", "b", "--reason", "memory errors")
    assert drain.wait() == 0
    assert agents[1].wait() == 0
    assert "agent: this agent left its run, drained by " in agents[1].stderr
    for worker in workers:
        worker.wait_gone()
    for worker in job.server.wait_for(2):
        worker.ask("say trains on")
        worker.order("exit 0")
    assert [agents[0].wait(), agents[2].wait()] == [0, 0]
    assert job.state().run.restart_count == 0
    listed = job.coordinator.operate("drains")
    assert "memory errors" in listed.stdout


SAVES = """
import os, pathlib, time
import worker_sdk

at = pathlib.Path(__file__).parent
for step in range(1_000_000):
    worker_sdk.heartbeat(step)
    if worker_sdk.should_checkpoint(step):
        print("saves", flush=True)
        while not (at / "may_save").exists():
            time.sleep(0.01)
        worker_sdk.checkpointed(step, wait=True)
    if step == 0:
        print("trains in round", os.environ["DRUMBEAT_ROUND"], flush=True)
    if (at / "done").exists():
        break
    time.sleep(0.01)
"""


def test_a_drain_and_those_who_look_on_outlive_the_coordinator(cluster: Cluster) -> None:
    """It ends while all save: they save, the host leaves, and whoever looked on sees that."""
    script, coordinator = cluster.directory / "saves.py", cluster.coordinator()
    script.write_text(SAVES)
    options = ("--nnodes", "2:3", "--last-call", "1h", "--name")
    agents = [cluster.agent(*options, name, str(script), coordinator=coordinator) for name in "abc"]
    agents[0].wait_for_line("3 workers on 3 agents")
    where = ("--coordinator", coordinator.address)
    follower, watcher = (
        cluster.process(verb, "coordinator", verb, "run", *more, *where)
        for verb, *more in (("logs", "--follow"), ("watch", "-o", "json"))
    )
    follower.wait_for_line("trains in round 0", count=3)
    watcher.wait_for_line('"round_id": 0')
    assert coordinator.operate("drain", "b", "--reason", "fans").wait() == 0
    follower.wait_for_line("saves", count=3)

    coordinator.kill()
    for each in (follower, watcher):
        each.wait_for_line("waiting for it")
    (cluster.directory / "may_save").touch()
    coordinator.restart()
    assert agents[1].wait() == 0
    follower.wait_for_line("trains in round 1", count=2)
    watcher.wait_for_line('"round_id": 1')

    (cluster.directory / "done").touch()
    assert [agents[0].wait(), agents[2].wait()] == [0, 0]
    assert [follower.wait(), watcher.wait()] == [0, 0]
    assert coordinator.run("run").restart_count == 0
