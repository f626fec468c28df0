"""A host that fails every round is excluded for a while, and comes back; with real processes."""

import json
from pathlib import Path

import pytest

from tests.support.cluster import Agent, Cluster, Coordinator
from tests.support.status import RunStatus
from tests.support.waiting import wait_until_sync

pytestmark = pytest.mark.timeout(120)

HOW = ("--nnodes", "2:3", "--max-restarts", "5", "--join-timeout", "60")
AFTER_TWO = ("--exclude-after", "2")
# The worker of host b fails in every round that it is in with the two others, until a file tells
# that the host is repaired. All workers end once a file says so.
TRAIN = """
import os, sys, time
import worker_sdk
from pathlib import Path

folder, name = Path(sys.argv[1]), sys.argv[2]
if os.environ["WORLD_SIZE"] == "3" and name == "b" and not (folder / "repaired").exists():
    sys.exit(7)
(folder / f"{name}-in-{os.environ['WORLD_SIZE']}").touch()
while not (folder / "end").exists():
    worker_sdk.heartbeat()
    time.sleep(0.02)
"""


def join(cluster: Cluster, coordinator: Coordinator, folder: Path, *how: str) -> dict[str, Agent]:
    (folder / "train.py").write_text(TRAIN)
    run = (str(folder / "train.py"), str(folder))
    # The first round waits for all three; later ones do not.
    return {
        name: cluster.agent(*HOW, *how, "--name", name, *run, name, coordinator=coordinator)
        for name in "abc"
    }


def is_without_b(run: RunStatus) -> bool:
    return run.restart_count == 2 and any(
        event.reason.startswith("host b is excluded for 1 h") for event in run.history
    )


def drains(coordinator: Coordinator) -> list[dict[str, object]]:
    listed: list[dict[str, object]] = json.loads(
        coordinator.operate("drains", "-o", "json").stdout
    )["drains"]
    return listed


@pytest.mark.slow
def test_a_host_that_fails_twice_in_a_row_is_excluded_until_an_operator_brings_it_back(
    cluster: Cluster, tmp_path: Path
) -> None:
    coordinator = cluster.own_coordinator()
    agents = join(cluster, coordinator, tmp_path, *AFTER_TWO)
    coordinator.wait_for_run(cluster.run_id, is_without_b, timeout_s=60)
    (drain,) = drains(coordinator)
    assert (drain["name"], drain["run_id"]) == ("b", cluster.run_id)
    assert drain["caller"] == "coordinator"
    assert "blamed for 2 rounds in a row" in str(drain["reason"])
    assert 3000 < float(str(drain["time_left_s"])) <= 3600
    assert "LEFT" in coordinator.operate("drains").stdout

    (tmp_path / "repaired").touch()
    said = coordinator.operate("undrain", "b", "--run-id", cluster.run_id)
    assert said.wait() == 0, said.log()
    wait_until_sync((tmp_path / "b-in-3").exists, timeout_s=60)
    (tmp_path / "end").touch()
    assert [agents[name].wait() for name in "abc"] == [0, 0, 0]


@pytest.mark.slow
def test_a_restart_rule_excludes_the_host_of_the_root_cause_at_once(
    cluster: Cluster, tmp_path: Path
) -> None:
    coordinator = cluster.own_coordinator()
    rule = "exit=7:exclude"
    agents = join(cluster, coordinator, tmp_path, "--restart-rule", rule)
    run = coordinator.wait_for_run(
        cluster.run_id, lambda run: "host b is excluded for 1 h" in run.reason, timeout_s=60
    )
    assert f"({rule}): host b is excluded for 1 h; free restart 1 of 20" in run.reason
    assert run.restart_count == 1
    (tmp_path / "end").touch()
    assert [agents[name].wait() for name in "acb"] == [0, 0, 0]
    assert drains(coordinator) == [], "the next run of this name may use the host"
