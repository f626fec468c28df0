"""Faults in a run of real processes that saves and resumes: what an operator sees of it."""

import json
import re
from typing import Any

import pytest

from tests.support.cluster import Agent, Cluster, Coordinator
from tests.support.processes import ROOT

WORKER = ROOT / "tests" / "support" / "workers" / "resuming.py"
QUICK = ("--heartbeat-interval", "0.2", "--lease", "2")
JOB = ("--nnodes", "1:2", "--nproc-per-node", "2", "--last-call", "1s", "--max-restarts", "0")


def train(cluster: Cluster, coordinator: Coordinator) -> list[Agent]:
    """Start two agents with two workers each, and return once all have made steps."""
    (cluster.directory / "saved").mkdir()
    argv = (*JOB, str(WORKER), str(cluster.directory / "saved"))
    agents = [cluster.agent("--name", name, *argv, coordinator=coordinator) for name in ("a", "b")]
    coordinator.wait_for_run(
        cluster.run_id,
        lambda run: (
            run.run.round.world_size == 4
            and sum(w.step > 0 for agent in run.agents for w in agent.workers) == 4
        ),
    )
    return agents


def rehearse(coordinator: Coordinator, *options: str) -> Any:
    done = coordinator.operate("rehearse", "run", *options, "-o", "json")
    assert done.wait() == 0, done.log()
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_run_recovers_from_each_kind_of_fault_and_is_charged_for_none(cluster: Cluster) -> None:
    coordinator = cluster.coordinator("--allow-rehearsals", *QUICK)
    agents = train(cluster, coordinator)
    once = ("--now", "--at-most", "1", "--seed", "3", "--pause", "1s", "--faults")

    shown = coordinator.operate("rehearse", "run", *once, "worker")
    assert shown.wait() == 0, shown.log()
    assert re.search(r"fault 1 of 1: worker rank \d on [ab] killed; trains again", shown.stdout)
    assert "the run recovered from 1 of 1 fault" in shown.stdout
    report = rehearse(coordinator, "--report")
    (fault,) = report["faults"]
    assert (fault["kind"], fault["outcome"], report["is_running"]) == ("worker", "recovered", False)
    assert 0 < fault["detected_s"] < fault["running_s"] <= fault["trained_s"]
    assert report["trained_worst_s"] == fault["trained_s"]
    # Of steps of 20 ms beats tell one in ten, so they are those of other steps.
    assert min(fault["loss_before"], fault["loss_after"]) > 0
    assert re.search(r"loss \S+ before, \S+ after", shown.stdout)

    report = rehearse(coordinator, *once, "host-pause")
    (fault,) = report["faults"]
    assert (fault["kind"], fault["outcome"]) == ("host_pause", "recovered")
    assert (fault["detected_s"], fault["trained_s"] > 1.0) == (None, True)

    report = rehearse(coordinator, *once, "agent")
    (fault,) = report["faults"]
    assert (fault["kind"], fault["outcome"]) == ("agent", "recovered")
    killed = agents["ab".index(fault["name"])]
    assert killed.wait() == -9
    (left,) = [agent for agent in agents if agent is not killed]
    assert len(left.worker_pids()) == 2

    report = rehearse(coordinator, *once, "agent")
    assert report["faults"][0]["outcome"] == "not_injected", "none would be left"
    run = coordinator.run("run")
    assert (run.run.restart_count, run.run.restarts_used, run.run.lost_count) == (0, 0, 0)
    goodput = coordinator.operate("goodput", "run", "-o", "json")
    causes = {row["cause"]: row["restarts"] for row in json.loads(goodput.stdout)["causes"]}
    assert causes["rehearsed"] == 2
    (cluster.directory / "saved" / "end").touch()
    assert left.wait() == 0


@pytest.mark.slow
def test_a_coordinator_that_allows_no_rehearsals_says_how_to_allow_them(cluster: Cluster) -> None:
    coordinator = cluster.coordinator()
    train(cluster, coordinator)
    refused = coordinator.operate("rehearse", "run", "--now")
    assert refused.wait() == 2
    assert "coordinator serve --allow-rehearsals" in refused.stderr
