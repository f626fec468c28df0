"""A rank that holds the others up is found although all have the same step time."""

import json
from collections.abc import Iterable

import pytest

from drumbeat.v1 import query_pb2, query_pb2_grpc
from tests.support.channels import channel_to
from tests.support.cluster import Cluster, Coordinator
from tests.support.processes import DEADLINE_S
from tests.support.waiting import wait_until_sync

TRAIN = """
import os, pathlib, time
import worker_sdk

at = pathlib.Path(__file__).parent
STEP_S = 0.05
rank = int(os.environ["RANK"])
due = time.monotonic()
for step in range(1_000_000):
    # What it would measure, were this host its own: elsewhere a sleep may take longer.
    busy = 0.035 if rank == 3 and not (at / "mended").exists() else 0.01
    time.sleep(busy)
    due += STEP_S  # all wait for the slowest, as in an all-reduce
    time.sleep(max(0.0, due - time.monotonic()))
    worker_sdk.heartbeat(step, total_steps=1_000_000, busy=busy)
    if (at / "done").exists():
        break
"""
FOUND, OVER = query_pb2.RUN_EVENT_KIND_STRAGGLER_FOUND, query_pb2.RUN_EVENT_KIND_STRAGGLER_OVER


def wait_for_event(coordinator: Coordinator, kind: int) -> str:
    seen = coordinator.wait_for_run("run", lambda run: any(e.kind == kind for e in run.history))
    return next(str(event.reason) for event in seen.history if event.kind == kind)


def asked(coordinator: Coordinator) -> query_pb2.GetStepTimesResponse:
    with channel_to(coordinator.address) as channel:
        stub = query_pb2_grpc.QueryServiceStub(channel)
        request = query_pb2.GetStepTimesRequest(run_id="run")
        return stub.GetStepTimes(request, wait_for_ready=True)


def known(seconds: Iterable[float]) -> list[float]:
    """Return those of columns that are known; the latest may have just begun."""
    return [each for each in seconds if each >= 0]


def all_known(times: query_pb2.GetStepTimesResponse) -> query_pb2.GetStepTimesResponse | None:
    """Return them once there is something of each rank."""
    columns = [each for row in times.ranks for each in (row.step_seconds, row.busy_seconds)]
    return times if columns and all(map(known, columns)) else None


@pytest.mark.slow
def test_it_is_found_shown_known_after_a_restart_and_over_once_mended(cluster: Cluster) -> None:
    script = cluster.directory / "train.py"
    script.write_text(TRAIN)
    coordinator = cluster.coordinator("--heartbeat-interval", "0.2", "--lease", "5")
    agents = [
        cluster.agent(
            *("--nnodes", "2", "--nproc-per-node", "2", "--straggler-report", "1.8,4"),
            *("--name", name, str(script)),
            coordinator=coordinator,
        )
        for name in ("gpu0", "gpu1")
    ]
    reason = wait_for_event(coordinator, FOUND)
    assert reason.startswith("rank 3 on gpu")
    assert " works " in reason
    shown = coordinator.operate("status", "run", "-o", "json").stdout
    (straggler,) = json.loads(shown)["stragglers"]
    assert (straggler["rank"], straggler["is_busy_time"]) == (3, True)
    assert straggler["step_time_s"] > 1.8 * straggler["median_s"]

    times = wait_until_sync(lambda: all_known(asked(coordinator)), DEADLINE_S)
    assert times is not None
    assert [row.rank for row in times.ranks] == [0, 1, 2, 3]
    assert max(known(times.ranks[3].busy_seconds)) > 0.03

    coordinator.kill()
    coordinator.restart()
    assert [each.rank for each in asked(coordinator).stragglers] == [3]
    (cluster.directory / "mended").touch()
    wait_for_event(coordinator, OVER)
    (cluster.directory / "done").touch()
    assert [agent.wait() for agent in agents] == [0, 0]
