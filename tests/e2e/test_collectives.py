"""An unmodified script hangs, and `coordinator why` names the collective and the rank."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Agent, Cluster, Coordinator
from tests.support.processes import DEADLINE_S

pytestmark = [
    pytest.mark.torch,
    pytest.mark.timeout(240),
    pytest.mark.usefixtures("shared_coordinator"),
]

# No line of it is about drumbeat. At step 5 the rank `guilty` does what `way` says.
TRAIN = """
import os, sys, time

import torch
import torch.distributed as dist

way, guilty, model_kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()


def fetch_next_batch(step):
    if way == "loader" and rank == guilty and step == 5:
        time.sleep(1000)
    return torch.ones(2, 8)


def build():
    if model_kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8)), None
    from torch.distributed.device_mesh import init_device_mesh

    if model_kind == "mesh":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        return torch.nn.Linear(8, 8), mesh
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Linear(8, 8)
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    return model, None


def talk(step, mesh):
    if mesh is not None:
        row = torch.ones(4)
        dist.all_reduce(row, group=mesh.get_group("tp"))
        dist.all_reduce(row, group=mesh.get_group("dp"))
    if way == "skips" and rank == guilty and step == 5:
        return
    length = 72  # as long as the gradients
    if way == "size":
        length = 6 if rank == guilty and step == 5 else 5
    metric = torch.ones(length)
    dist.all_reduce(metric)


model, mesh = build()
for step in range(8 if way == "skips" else 1000):
    batch = fetch_next_batch(step)
    model(batch).sum().backward()
    if way == "died" and rank == guilty and step == 5:
        os._exit(3)
    talk(step, mesh)
    print("step", step, flush=True)
print("trained", flush=True)
if way == "skips":
    time.sleep(1000)
"""


PRELOADED = ("--preload", "torch")


def start(
    cluster: Cluster, directory: Path, *script_args: object, options: tuple[str, ...] = ()
) -> tuple[Coordinator, Agent]:
    """Start one agent with four workers."""
    script = directory / "train.py"
    script.write_text(TRAIN)
    coordinator = cluster.coordinator()
    argv = ("--nproc-per-node", "4", *options, str(script), *map(str, script_args))
    return coordinator, cluster.agent(*argv, coordinator=coordinator)


def why(cluster: Cluster, coordinator: Coordinator) -> list[str]:
    """Return what `why` says once the run hangs."""
    until = time.monotonic() + 3 * DEADLINE_S
    said: list[str] = []
    argv = ("why", cluster.run_id, "-o", "json", "--coordinator", coordinator.address)
    while time.monotonic() < until:
        operator = cluster.process("operator", "coordinator", *argv)
        if operator.wait() == 0:  # else the agent has not joined yet
            document: dict[str, Any] = json.loads(operator.stdout)
            said = document["what"]
            assert document["phase"] != "ended", said
            if "is hanging" in said[0]:
                return said
    raise AssertionError(f"it never hung: {said}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "kind", "options"),
    [
        ("loader", "ddp", ()),
        ("loader", "mesh", PRELOADED),
        pytest.param("loader", "ddp", PRELOADED, marks=pytest.mark.soak),
        pytest.param("skips", "ddp", PRELOADED, marks=pytest.mark.soak),
        pytest.param("size", "ddp", PRELOADED, marks=pytest.mark.soak),
        pytest.param("loader", "fsdp", PRELOADED, marks=pytest.mark.soak),
    ],
)
def test_why_names_the_collective_and_the_rank(
    cluster: Cluster, tmp_path: Path, way: str, kind: str, options: tuple[str, ...]
) -> None:
    coordinator, _ = start(cluster, tmp_path, way, 2, kind, options=options)
    waits, cause = why(cluster, coordinator)[:2]
    if way == "size":
        who, calls = waits.partition(" is hanging: ")[2].split(" call ", 1)
        assert who == "ranks 0-1,3"
        assert "(float32 [5]), rank 2 calls all_reduce #" in calls
        assert calls.endswith(" with float32 [6].")
        assert cause.startswith("Rank 2 (")
        assert cause.endswith(" is in all_reduce (train.py:44).")
        return
    assert "rank 2" not in waits.lower()
    assert " process group " in waits
    assert " since " in waits
    assert cause.startswith("Rank 2 (")
    assert " has not entered it; it finished #" in cause or "has not entered it and is" in cause
    place = "<module> (train.py:" if way == "skips" else "fetch_next_batch (train.py:14)"
    assert f" and is in {place}" in cause


@pytest.mark.soak
def test_a_worker_that_died_is_the_cause(cluster: Cluster, tmp_path: Path) -> None:
    coordinator, agent = start(cluster, tmp_path, "died", 2, "ddp", options=PRELOADED)
    assert agent.wait() == 1
    report = coordinator.run(cluster.run_id).verdict.report
    assert [cause.worker.rank for cause in report.root_causes] == [2]


@pytest.mark.slow
def test_a_run_that_waits_in_a_collective_for_too_long_restarts(
    cluster: Cluster, tmp_path: Path
) -> None:
    options = ("--collective-timeout", "2s", *PRELOADED)
    coordinator, agent = start(cluster, tmp_path, "loader", 1, "ddp", options=options)
    assert agent.wait() == 1
    report = coordinator.run(cluster.run_id).verdict.report
    assert [cause.worker.rank for cause in report.root_causes] == [1], agent.log()
    assert report.hang.causes[0].place.startswith("in fetch_next_batch (train.py:")
    assert report.hang.collective.startswith("ranks 0,2-3 of 4 wait in all_reduce #")
    assert "rank 1 on" in agent.stderr


@pytest.mark.soak
def test_without_observer_no_worker_is_asked(cluster: Cluster, tmp_path: Path) -> None:
    coordinator, agent = start(cluster, tmp_path, "loader", 1, "ddp", options=("--no-observer",))
    agent.wait_for_line("step 4")
    operator = cluster.process(
        "operator", "coordinator", "why", cluster.run_id, "--coordinator", coordinator.address
    )
    assert operator.wait() == 0
    assert "process group" not in operator.stdout
