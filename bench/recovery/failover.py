"""What does a journal on etcd cost, and how long is a run without a coordinator that leads?

Members of etcd, coordinators and agents share the cores of one machine. The members write to its
disk as they do in production.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from bench import cpu
from bench.harness import LOOPBACK, BenchmarkError, Question, Scene
from bench.recovery.restart import restart_ours
from bench.scale import fake_agents
from bench.scale.fake_agents import Fleet
from bench.scale.fleet_processes import cpu_s, fleet_of
from drumbeat.v1 import control_pb2
from tests.support.etcd import EtcdCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psutil

AGENTS = 100
THOUSAND = 1_000
MEMBERS = 3
TTL_S = 3  # the default

_prefixes = itertools.count()


class Change(NamedTuple):
    """How long it took, and what the next leader and the agents took of the processor."""

    took_s: float
    coordinator_s: float
    generator_s: float


def on_etcd(scene: Scene, etcd: EtcdCluster, prefix: str) -> tuple[psutil.Popen, int]:
    """Start one more coordinator of those that share a prefix; return it and its port."""
    state = f"{scene.directory}/state-{next(_prefixes)}"
    options = ("--journal", etcd.url(prefix), "--leader-ttl", f"{TTL_S}s", "--state-dir", state)
    return scene.start_coordinator(0, *options)


async def change_leaders(
    scene: Scene, etcd: EtcdCluster, *, is_handed_over: bool, agents: int
) -> Change:
    """Return how long it takes until all agents have another coordinator, and its decision."""
    leader, first = on_etcd(scene, etcd, "bench")
    follower, second = on_etcd(scene, etcd, "bench")
    credentials = scene.credentials(first)
    addresses = [f"{LOOPBACK}:{port}" for port in (first, second)]
    async with fleet_of(addresses, agents, credentials=credentials) as fleet:
        await fleet.time_to_assign()
        began, coordinator_s, generator_s = time.monotonic(), cpu.tree_s(follower), cpu_s()
        if is_handed_over:
            request = control_pb2.StepDownRequest(reason="bench")
            await asyncio.to_thread(scene.call, first, "StepDown", request)
        else:
            leader.kill()
        # Said while nothing leads, if it is so: the next one has to find the failure and decide.
        await fleet.time_to_restart()
        await fleet.all_back_at()
        change = Change(
            took_s=time.monotonic() - began,
            coordinator_s=cpu.tree_s(follower) - coordinator_s,
            generator_s=cpu_s() - generator_s,
        )
        rounds = (await fleet.told()).rounds
        if rounds != {0, 1}:
            raise BenchmarkError(f"the fleet was in the rounds {rounds}")
        return change


def timed_change(*, is_handed_over: bool, agents: int) -> Change:
    """As ``change_leaders``, with an etcd and coordinators for it alone."""
    with Scene() as scene, EtcdCluster(MEMBERS, is_durable=True) as etcd:
        change = change_leaders(scene, etcd, is_handed_over=is_handed_over, agents=agents)
        return fake_agents.run(change)


def failover(*, is_handed_over: bool) -> float:
    return timed_change(is_handed_over=is_handed_over, agents=AGENTS).took_s


@contextmanager
def coordinator(members: int) -> Iterator[tuple[Scene, int]]:
    """Have a coordinator, on SQLite without members of etcd; yield its scene and its port."""
    cluster = EtcdCluster(members, is_durable=True) if members else nullcontext()
    with Scene() as scene, cluster as etcd:
        _, port = on_etcd(scene, etcd, "bench") if etcd else scene.start_coordinator()
        yield scene, port


def restart(members: int) -> float | None:
    """Return the time from the death of a worker until all are up."""
    with coordinator(members) as (scene, port):
        return restart_ours(scene, port)


def assign(members: int) -> float:
    """Return the time until a thousand agents that come at once are assigned."""
    with coordinator(members) as (scene, port):

        async def measure() -> float:
            credentials = scene.credentials(port)
            async with Fleet(f"{LOOPBACK}:{port}", THOUSAND, credentials=credentials) as fleet:
                return await fleet.time_to_assign()

        return fake_agents.run(measure())


QUESTIONS = (
    Question(
        name="failover_killed",
        text=f"the leader is killed, time to live {TTL_S} s: {AGENTS} agents attached, "
        "a failure decided after",
        unit="s",
        repeats=5,
        ours=partial(failover, is_handed_over=False),
    ),
    Question(
        name="failover_handed_over",
        text="the same, with leadership handed over",
        unit="s",
        repeats=5,
        ours=partial(failover, is_handed_over=True),
    ),
    Question(
        name="restart_etcd",
        text=f"a worker is killed, 2 agents x 2 workers, etcd of {MEMBERS}: all 4 new ones up",
        unit="s",
        repeats=5,
        ours=partial(restart, MEMBERS),
        torchrun=partial(restart, 0),
        rival="SQLite",
    ),
    Question(
        name="rendezvous_1000_etcd",
        text=f"1,000 agents come at once, etcd of {MEMBERS} on the same cores: all have ranks",
        unit="s",
        repeats=5,
        ours=partial(assign, MEMBERS),
        torchrun=partial(assign, 0),
        rival="SQLite",
    ),
)
