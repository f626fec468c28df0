"""What is wrong with a run is named in the first three lines of `status` and `why`."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from drumbeat.v1.query_pb2 import RUN_PHASE_RUNNING as RUNNING
from tests.support.cluster import Agent, Cluster, Coordinator
from tests.support.processes import DEADLINE_S
from tests.support.waiting import wait_until_sync

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

STEPS = """
import itertools, os, sys, time, worker_sdk

rank, fault = int(os.environ["RANK"]), sys.argv[1]
for step in itertools.count():
    busy = 0.1 if fault == "slow" and rank == 1 else 0.01
    time.sleep(busy)
    worker_sdk.heartbeat(step, busy=busy)
    if step == 20 and rank == 1 and fault == "fails":
        raise ValueError("loss is nan")
    while step == 20 and rank == 1 and fault == "hangs":
        time.sleep(1)
"""


class Case(NamedTuple):
    """A run, and the health and words that tell what it is."""

    run_id: str
    fault: str
    options: Sequence[str]
    health: str
    words: tuple[str, ...]
    agents: int = 1


CASES = [
    Case("healthy", "none", (), "healthy", ("is healthy: training, round 0 for",)),
    Case(
        "loops",
        "fails",
        ("--max-restarts", "1000", "--restart-delay-max", "0"),
        "crash_loop",
        ("is in a crash loop", "ValueError at train.py:10", "always rank 1"),
    ),
    Case(
        "slow",
        "slow",
        ("--straggler-report", "1.5,30"),
        "degraded",
        ("is degraded: training", "slow: rank 1 on gpu0 works 100 ms"),
    ),
    Case(
        "hangs",
        "hangs",
        ("--progress-timeout", "report"),
        "hanging",
        ("rank 1 on gpu0 is in <module>", "no further heartbeat within"),
    ),
    Case(
        "waits", "none", ("--nnodes", "2"), "waiting", ("is waiting for its next round", "1 of 2")
    ),
    Case(
        "failed", "fails", ("--max-restarts", "0"), "failed", ("failed", "ValueError: loss is nan")
    ),
    Case("stopped", "none", (), "stopped", ("stopped by",)),
]


def first_lines(coordinator: Coordinator, verb: str, run_id: str) -> str:
    shown = coordinator.operate(verb, run_id)
    return " ".join(shown.stdout.splitlines()[:3])


def join(cluster: Cluster, coordinator: Coordinator, case: Case, path: Path) -> Agent:
    return cluster.agent(
        *("--name", "gpu0", "--nproc-per-node", "4", *case.options),
        *(str(path), case.fault),
        coordinator=coordinator,
        run_id=case.run_id,
    )


def health(coordinator: Coordinator, run_id: str) -> str:
    shown = coordinator.operate("status", run_id, "-o", "json").stdout
    return str(json.loads(shown)["health"]) if shown else "unknown yet"


def is_so(coordinator: Coordinator, case: Case) -> bool:
    return health(coordinator, case.run_id) == case.health


def test_each_way_to_be_is_named_in_the_first_three_lines(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(STEPS)
    coordinator = cluster.coordinator()
    for case in CASES:
        join(cluster, coordinator, case, path)
        if case.run_id == "stopped":
            coordinator.wait_for_run("stopped", lambda run: run.phase == RUNNING)
            assert coordinator.operate("stop", "stopped").wait() == 0
        wait_until_sync(partial(is_so, coordinator, case), DEADLINE_S)
        for verb in ("status", "why"):
            shown = first_lines(coordinator, verb, case.run_id)
            assert [word for word in case.words if word not in shown] == [], f"{verb}: {shown}"
        if case.run_id not in ("failed", "stopped", "healthy", "loops"):
            assert coordinator.operate("stop", case.run_id).wait() == 0  # two cores are few
    listed = coordinator.operate("status").stdout.splitlines()
    order = [line.split()[0] for line in listed[1:]]
    assert order[0] == "loops"
    assert order.index("failed") < order.index("healthy") < order.index("stopped")
    metrics = coordinator.operate("status", "-o", "json").stdout
    assert {run["run_id"]: run["health"] for run in json.loads(metrics)["runs"]}["loops"] == (
        "crash_loop"
    )
