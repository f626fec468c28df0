"""`agent status` shows the agents of a host without asking anything of them."""

import json
from typing import Any

import pytest

from tests.support.cluster import DEADLINE_S, Agent, Cluster
from tests.support.waiting import wait_until_sync


def status(cluster: Cluster) -> tuple[int, dict[str, Any]]:
    asked = cluster.process("status", "agent", "status", "-o", "json")
    code = asked.wait()
    return code, json.loads(asked.stdout)


def running(cluster: Cluster, agent: Agent) -> dict[str, Any]:
    """What is shown of an agent once its worker is."""

    def look() -> dict[str, Any] | None:
        found = {each["pid"]: each for each in status(cluster)[1]["agents"]}
        mine: dict[str, Any] = found.get(agent.pid, {})
        return mine if mine.get("workers") else None

    shown = wait_until_sync(look, DEADLINE_S, describe=agent.log)
    assert shown is not None, "waited for"
    return shown


@pytest.mark.slow
def test_living_agents_are_shown_and_those_that_died_told_apart(cluster: Cluster) -> None:
    job = cluster.job("--nnodes", "2")
    agents = job.join_in_order(("--name", "a"), ("--name", "a"))
    # As the coordinator tells them apart.
    for agent, name in zip(agents, ("a", "a#2"), strict=True):
        shown = running(cluster, agent)
        assert (shown["run_id"], shown["name"], shown["round_id"]) == ("run", name, 0)
        assert shown["coordinator"] == job.coordinator.address
        (worker,) = shown["workers"]
        assert [worker["pid"]] == agent.worker_pids()
        assert worker["rank"] == shown["group_rank"]
        assert 0 <= worker["age_s"] <= shown["age_s"]

    # One that does not run at all is shown as it was.
    agents[0].stop()
    assert running(cluster, agents[0])["state"] == "running"

    for agent in agents:
        agent.kill()
    code, told = status(cluster)
    killed, living = {agent.pid for agent in agents}, {each["pid"] for each in told["agents"]}
    assert code == (0 if living else 1), "this user may have others"
    assert not killed & living
    assert killed <= {left["pid"] for left in told["leftovers"]}
