"""Real agents that join and leave in a crowd are few events."""

import json

import pytest

from tests.support.cluster import Cluster

pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]


def test_a_crowd_is_one_event_and_a_follower_is_told_of_each_agent_once(cluster: Cluster) -> None:
    coordinator = cluster.own_coordinator()
    waiting = ("--nnodes", "11", "-m", "this")
    first = cluster.agent(*waiting, coordinator=coordinator)
    coordinator.wait_for_run("run", lambda run: len(run.history) == 1)
    follow = ("events", "run", "--follow", "-o", "json", "--coordinator", coordinator.address)
    follower = cluster.process("follower", "coordinator", *follow)
    follower.wait_for_line('"sequence": 1,')
    others = [cluster.agent(*waiting, coordinator=coordinator) for _ in range(9)]
    coordinator.wait_for_run("run", lambda run: len(run.agents) == 10)
    shown = json.loads(coordinator.operate("events", "run", "-o", "json").stdout)
    assert (shown["sequence"], shown["count"]) == (10, 10)
    assert shown["reason"].startswith("10 agents joined: ")
    assert shown["reason"].endswith(" and 5 more")

    coordinator.kill()
    coordinator.restart()
    again = json.loads(coordinator.operate("events", "run", "-o", "json").stdout)
    assert {**again, "age_s": 0} == {**shown, "age_s": 0}
    coordinator.operate("stop", "run")
    assert follower.wait() == 0, follower.log()
    told = [json.loads(line) for line in follower.stdout.splitlines() if line.startswith("{")]
    joins = [event for event in told if event["kind"] == "agent_admitted"]
    assert sum(event["count"] or 1 for event in joins) == 10
    assert "not shown" not in follower.stderr
    for agent in (first, *others):
        agent.wait()
