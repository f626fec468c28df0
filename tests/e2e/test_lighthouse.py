"""torchft's managers train on, and ask the coordinator, while a worker or the coordinator dies."""

import os
import re
import signal
from collections.abc import Callable
from importlib.util import find_spec
from itertools import pairwise
from typing import NamedTuple

import pytest

from tests.support.cluster import LOOPBACK, ROOT, Agent, Cluster
from tests.support.etcd import EtcdCluster
from tests.support.failover import Heads
from tests.support.waiting import MS, wait_until_sync

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        find_spec("torchft") is None, reason="torchft is not installed (demo extra)"
    ),
]

WORKER = str(ROOT / "tests" / "support" / "workers" / "replicas.py")
ENDLESS, COMPUTE_S = "1000000", "0.1"
TRAINING_S = 120_000 * MS
# Far less than torchft's own timeouts, of 20 s here, and than any of ours that could hold them up.
GAP_MAX_S = 8_000 * MS
# Of agents of a group with one worker; after the name of the group.
OPTIONS = ("--nproc-per-node", "1", "--max-restarts", "3", "--preload", "torch")
COMMAND = (WORKER, ENDLESS, COMPUTE_S)
_STEP = re.compile(r"step (\d+) group \d of (\d) at ([\d.]+) pid (\d+)")


class Step(NamedTuple):
    """One that a group has committed, with so many groups."""

    number: int
    groups: int
    at: float
    pid: int


def steps_of(agent: Agent) -> list[Step]:
    found = _STEP.findall(agent.stdout)
    return [Step(int(step), int(groups), float(at), int(pid)) for step, groups, at, pid in found]


def wait_for_step(agent: Agent, predicate: Callable[[Step], bool]) -> Step:
    """Return the first step from now on that fits."""
    seen = len(steps_of(agent))

    def look() -> Step | None:
        return next(filter(predicate, steps_of(agent)[seen:]), None)

    step = wait_until_sync(look, TRAINING_S, describe=agent.log)
    assert step is not None
    return step


def longest_gap_s(agent: Agent, since: Step) -> float:
    instants = [step.at for step in steps_of(agent) if step.at >= since.at]
    return max(later - earlier for earlier, later in pairwise(instants))


def test_only_the_group_of_a_killed_worker_restarts_and_no_worker_with_the_coordinator(
    cluster: Cluster,
) -> None:
    coordinator = cluster.own_coordinator()
    agents = [
        cluster.agent(
            *("--replica-group", f"{index}/3", *OPTIONS, *COMMAND),
            coordinator=coordinator,
            env={"RUST_LOG": "error"},
        )
        for index in range(3)
    ]
    before = [wait_for_step(agent, lambda step: step.groups == 3) for agent in agents]

    os.kill(before[2].pid, signal.SIGKILL)
    back = wait_for_step(agents[2], lambda step: step.pid != before[2].pid)
    for agent in agents[:2]:
        wait_for_step(agent, lambda step: step.groups == 3)
    gaps = [longest_gap_s(agent, step) for agent, step in zip(agents, before, strict=True)]
    print(f"a worker was killed: longest gaps {gaps[:2]} s, its group's {gaps[2]:.2f} s")
    assert max(gaps[:2]) < GAP_MAX_S
    assert back.number > before[2].number, "it begins anew"

    last = [steps_of(agent)[-1] for agent in agents]
    coordinator.kill()
    coordinator.restart()
    wanted = max(step.number for step in last) + 30
    after = [wait_for_step(agent, lambda step: step.number > wanted) for agent in agents]
    gaps = [longest_gap_s(agent, step) for agent, step in zip(agents, last, strict=True)]
    print(f"the coordinator was killed: longest gaps {gaps} s")
    assert max(gaps) < GAP_MAX_S
    assert [step.pid for step in after] == [step.pid for step in last], "a worker restarted"
    assert [step.pid for step in after[:2]] == [step.pid for step in before[:2]]
    assert "quorum" not in coordinator.process.stderr, "the quorum that went on got another id"


def test_the_death_of_a_leader_restarts_no_worker(cluster: Cluster, etcd: EtcdCluster) -> None:
    with Heads(cluster, etcd, 3) as heads:
        leader = heads.leader()
        token = leader.running.create_token().text()
        join = ("--coordinator", heads.addresses, "--token", token, "--run-id", "ft")
        agents = [
            cluster.agent(
                *(*join, "--local-addr", LOOPBACK, "--replica-group", f"{index}/2"),
                *(*OPTIONS, *COMMAND),
                env={"RUST_LOG": "error"},
            )
            for index in range(2)
        ]
        before = [wait_for_step(agent, lambda step: step.groups == 2) for agent in agents]
        term = leader.leads()
        leader.kill()
        heads.leader(after=term)
        wanted = max(steps_of(agent)[-1].number for agent in agents) + 30
        after = [wait_for_step(agent, lambda step: step.number > wanted) for agent in agents]
        gaps = [longest_gap_s(agent, step) for agent, step in zip(agents, before, strict=True)]
        print(f"the leader was killed: longest gaps {gaps} s")
        assert max(gaps) < GAP_MAX_S
        assert [step.pid for step in after] == [step.pid for step in before], "a worker restarted"
        assert {step.groups for step in after} == {2}
        for agent in agents:
            agent.kill()
