"""`coordinator stacks` tells where all workers are, while they are there."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import MS

if TYPE_CHECKING:
    from tests.support.cluster import Cluster

pytestmark = pytest.mark.e2e

TRAIN = """
import os, signal, threading, time
import worker_sdk

def next_batch():
    time.sleep(600)

def all_reduce():
    threading.Event().wait()

def step(rank):
    if rank == 2:
        next_batch()
    all_reduce()

rank = int(os.environ["RANK"])
if rank != 3:
    worker_sdk.heartbeat(step=1)
print(f"rank {rank} is there", flush=True)
if rank == 3:
    all_reduce()  # one that never uses the SDK
step(rank)
"""


def test_the_rank_that_sleeps_in_its_data_loader_is_named(cluster: Cluster) -> None:
    script = cluster.directory / "train.py"
    script.write_text(TRAIN)
    coordinator = cluster.coordinator()
    agents = [
        cluster.agent(
            *("--nnodes", "2", "--nproc-per-node", "2", "--name", name, str(script)),
            coordinator=coordinator,
        )
        for name in ("gpu0", "gpu1")
    ]
    for agent in agents:
        agent.wait_for_line(r"rank [02] is there")
        agent.wait_for_line(r"rank [13] is there")
    pids = sorted(pid for agent in agents for pid in agent.worker_pids())

    began = time.monotonic()
    asked = coordinator.operate("stacks", "run", "-o", "json")
    assert asked.wait() == 0, asked.log()
    assert time.monotonic() - began < 5_000 * MS
    told = json.loads(asked.stdout)
    places = {group["place"].partition(" ")[0]: group for group in told["groups"]}
    assert len(places["next_batch"]["ranks"]) == 1
    assert places["next_batch"]["ranks"] == [2], told
    assert places["wait"]["ranks"] == [0, 1], told
    (silent,) = told["unanswered"]
    assert silent["rank"] == 3
    assert "does not use the SDK" in silent["reason"]
    assert sorted(pid for agent in agents for pid in agent.worker_pids()) == pids, "they go on"

    shown = coordinator.operate("stacks", "run", "--rank", "2").stdout
    name = places["next_batch"]["workers"][0]["name"]
    assert shown.startswith(f"in next_batch (train.py:6): 1 rank (2 on {name})\n"), shown

    status = json.loads(coordinator.operate("status", "run", "-o", "json").stdout)
    workers = [worker for agent in status["agents"] for worker in agent["workers"]]
    assert sorted(worker["pid"] for worker in workers) == pids

    unknown = coordinator.operate("stacks", "nope")
    assert unknown.wait() == 2
    assert "there is no run 'nope'" in unknown.stderr
