"""The training function starts again in the process, on real hosts' processes and signals."""

import json
import os
import re
import signal
import sys
from typing import Any

import pytest

from drumbeat.worker.v1 import iteration_pb2
from tests.support.cluster import Agent, Cluster, Coordinator

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("shared_coordinator")]

WORKER = ("-m", "tests.support.workers.iterating")
HOSTS = 2
PER_HOST = 2
WORLD = HOSTS * PER_HOST


def start(
    cluster: Cluster,
    coordinator: Coordinator,
    *options: str,
    hosts: int = HOSTS,
    faults: dict[str, str] | None = None,
    **plan: Any,
) -> list[Agent]:
    """Start the agents in the order of their ranks."""
    text = json.dumps({"faults": faults or {}, **plan})
    nnodes = () if "--nnodes" in options else ("--nnodes", str(hosts))
    command = (*nnodes, "--nproc-per-node", str(PER_HOST), *options, *WORKER, text)
    agents: list[Agent] = []
    for _ in range(hosts):
        if agents:
            agents[-1].wait_for_line("standing by")
        agents.append(cluster.agent(*command, coordinator=coordinator))
    return agents


def lines_of(agents: list[Agent], what: str) -> list[dict[str, str]]:
    """Every line ``what`` of all workers: its fields, the round and the worker's first rank."""
    found = []
    for agent in agents:
        for line in agent.stdout.splitlines():
            match = re.search(rf"r(\d+) w(\d+) {what}(?: |$)(.*)", line)
            if match is not None:
                fields = dict(word.split("=", 1) for word in match[3].split())
                found.append({**fields, "round": match[1], "worker": match[2]})
    return found


def entered(agents: list[Agent], iteration: int) -> list[dict[str, str]]:
    lines = [line for line in lines_of(agents, "enter") if line["iteration"] == str(iteration)]
    return sorted(lines, key=lambda line: int(line["rank"]))


def wait_for_iteration(agents: list[Agent], iteration: int) -> None:
    for agent in agents:
        agent.wait_for_line(f"enter iteration={iteration} ")


@pytest.mark.slow
def test_an_exception_starts_the_function_again_everywhere(cluster: Cluster) -> None:
    """Same processes, same ranks, the next iteration, a fresh port."""
    coordinator = cluster.coordinator()
    agents = start(cluster, coordinator, faults={"3:0": "raise", "0:1": "raise"})
    assert [agent.wait() for agent in agents] == [0, 0], cluster.logs()
    lives = [entered(agents, iteration) for iteration in range(3)]
    for life in lives:
        assert {line["world_size"] for line in life} == {"4"}
        assert len({line["master_port"] for line in life}) == 1
    # All are pushed that the iteration begins, and no barrier follows: the fault of a rank that was
    # quicker may come with that order, or before the function was called, and then it is not.
    ranks = [[line["rank"] for line in life] for life in lives]
    assert "3" in ranks[0]
    assert "0" in ranks[1]
    assert ranks[2] == ["0", "1", "2", "3"]
    assert len({life[0]["master_port"] for life in lives}) == 3
    pids = [{line["rank"]: line["pid"] for line in life} for life in lives]
    assert all(before.items() <= pids[2].items() for before in pids)
    assert sorted(line["value"] for line in lines_of(agents, "returned")) == ["0", "1", "2", "3"]
    run = coordinator.run(cluster.run_id)
    assert (run.verdict.is_success, run.restart_count, run.iterations_restarted) == (True, 0, 2)


def test_a_killed_rank_is_replaced_by_a_spare(cluster: Cluster) -> None:
    """The spare stood by inside the wrapper, and steps in with the rank that is free."""
    coordinator = cluster.coordinator()
    agents = start(cluster, coordinator, faults={"1:0": "kill"}, active=3)
    assert [agent.wait() for agent in agents] == [0, 0], cluster.logs()
    assert [line["worker"] for line in entered(agents, 0)] == ["0", "1", "2"]
    assert [line["worker"] for line in entered(agents, 1)] == ["0", "2", "3"]
    assert [line["rank"] for line in entered(agents, 1)] == ["0", "1", "2"]
    assert "SIGKILL" in cluster.logs()
    assert sorted(line["value"] for line in lines_of(agents, "returned")) == ["0", "1", "2"]


@pytest.mark.slow
def test_no_ping_within_the_soft_timeout_interrupts_and_goes_on(cluster: Cluster) -> None:
    """A main thread that sleeps is woken, and its rank takes part again."""
    coordinator = cluster.coordinator()
    options = {"soft_timeout": 2, "hard_timeout": 30, "heartbeat_timeout": 20}
    agents = start(cluster, coordinator, faults={"1:0": "sleep"}, options=options)
    assert [agent.wait() for agent in agents] == [0, 0], cluster.logs()
    assert [line["worker"] for line in entered(agents, 1)] == ["0", "1", "2", "3"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "options", "kind"),
    [
        ("stop", {"soft_timeout": 1.5, "hard_timeout": 3, "termination_grace_time": 1}, ""),
        ("hold", {"soft_timeout": 20, "hard_timeout": 30, "heartbeat_timeout": 2}, "UNRESPONSIVE"),
    ],
)
def test_a_rank_that_can_t_be_woken_is_killed_and_left_behind(
    cluster: Cluster, fault: str, options: dict[str, float], kind: str
) -> None:
    """It is stopped: the agent ends it at the hard timeout. Or it holds the interpreter's lock.

    That is noticed by its heartbeat, long before the hard timeout.
    """
    coordinator = cluster.own_coordinator()
    agents = start(cluster, coordinator, faults={"1:0": fault}, options=options)
    assert [agent.wait() for agent in agents] == [0, 0], cluster.logs()
    assert [line["worker"] for line in entered(agents, 1)] == ["0", "2", "3"]
    assert kind in coordinator.process.stderr


@pytest.mark.slow
def test_a_lost_host_is_left_behind(cluster: Cluster) -> None:
    coordinator = cluster.coordinator()
    agents = start(cluster, coordinator, faults={"0:0": "sleep", "1:0": "sleep"})
    wait_for_iteration(agents, 0)
    agents[1].kill()
    agents[0].wait_for_line("enter iteration=1 ")
    assert agents[0].wait() == 0, cluster.logs()
    assert [line["worker"] for line in entered(agents, 1)] == ["0", "1"]
    assert coordinator.run(cluster.run_id).verdict.is_success


@pytest.mark.slow
def test_too_few_ranks_fall_back_to_new_processes(cluster: Cluster) -> None:
    """The budget of restarts pays for it, and the round after it has all ranks again."""
    coordinator = cluster.coordinator()
    options = {"min_world_size": 4}
    agents = start(
        cluster,
        coordinator,
        *("--max-restarts", "1"),
        faults={"1:0": "kill"},
        options=options,
        only_round=0,
    )
    assert [agent.wait() for agent in agents] == [0, 0], cluster.logs()
    run = coordinator.run(cluster.run_id)
    assert (run.verdict.is_success, run.restart_count) == (True, 1)
    again = [line for line in entered(agents, 0) if line["round"] == "1"]
    assert [line["rank"] for line in again] == ["0", "1", "2", "3"]


@pytest.mark.slow
def test_without_a_budget_too_few_ranks_are_a_failure_with_its_cause(cluster: Cluster) -> None:
    coordinator = cluster.coordinator()
    faults = {"0:0": "raise", "1:1": "kill"}
    agents = start(cluster, coordinator, faults=faults, options={"min_world_size": 4})
    assert [agent.wait() for agent in agents] == [1, 1], cluster.logs()
    run = coordinator.run(cluster.run_id)
    (cause,) = run.verdict.report.root_causes
    assert (cause.worker.rank, cause.iteration, cause.signal_name) == (1, 1, "SIGKILL")
    assert cause.interruption == iteration_pb2.INTERRUPTION_KIND_TERMINATED
    assert run.iterations_restarted == 1
    assert "restarts: 0 of 0 used" in run.verdict.reason
    assert "1 restart in process" in run.verdict.reason


@pytest.mark.slow
def test_the_coordinator_dies_in_the_middle_of_an_interruption(cluster: Cluster) -> None:
    """What it had not told it tells after its return; no process is started for it."""
    coordinator = cluster.own_coordinator()
    agents = start(cluster, coordinator, faults={"0:0": "sleep"})
    wait_for_iteration(agents, 0)
    coordinator.kill()
    (pid, _) = agents[1].worker_pids()
    os.kill(pid, signal.SIGKILL)
    coordinator.restart()
    assert [agent.wait() for agent in agents] == [0, 0], cluster.logs()
    assert len(entered(agents, 1)) == WORLD - 1
    assert coordinator.run(cluster.run_id).restart_count == 0


def test_a_second_program_of_the_same_workers_restarts_as_well(cluster: Cluster) -> None:
    plan = json.dumps({"faults": {"0:0": "raise"}})
    program = f"{sys.executable} -m tests.support.workers.iterating '{plan}'"
    coordinator = cluster.coordinator()
    agent = cluster.agent(
        *("--nproc-per-node", "2", "--no-python", "bash", "-c", f"{program} && {program}"),
        coordinator=coordinator,
    )
    assert agent.wait() == 0, cluster.logs()
    assert [len(entered([agent], iteration)) for iteration in (0, 1)] == [4, 4]
