"""Do coordinators with prefixes of their own on one etcd disturb each other?

``python -m bench.scale.two_leaders [AGENTS]``: two leaders, a fleet of each. Decisions of one run
are timed alone, while another fleet joins the other leader, and while that one is killed.
"""

from __future__ import annotations

import asyncio
import statistics
import sys

from bench.harness import LOOPBACK, BenchmarkError, Scene
from bench.recovery.failover import MEMBERS, on_etcd
from bench.scale import fake_agents
from bench.scale.fake_agents import Fleet
from tests.support.etcd import EtcdCluster

DECISIONS = 10
PAUSE_S = 0.1


async def decisions(fleet: Fleet) -> float:
    """Return the median of how long it takes until all agents of a fleet are assigned anew."""
    took = []
    for _ in range(DECISIONS):
        took.append(await fleet.time_to_restart())
        await asyncio.sleep(PAUSE_S)
    return statistics.median(took)


async def measure(scene: Scene, etcd: EtcdCluster, agents: int) -> dict[str, float]:
    """Return the times of the first fleet, and of both that join at once."""
    _, first = on_etcd(scene, etcd, "first")
    credentials = scene.credentials(first)
    address = f"{LOOPBACK}:{first}"
    async with Fleet(address, agents, "one", credentials=credentials) as fleet:
        figures = {"assigned": await fleet.time_to_assign(), "alone": await decisions(fleet)}
        with Scene() as beside:
            other, second = on_etcd(beside, etcd, "second")
            used = beside.credentials(second)
            async with Fleet(f"{LOOPBACK}:{second}", agents, "two", credentials=used) as others:
                beats = asyncio.create_task(others.time_to_assign())
                figures["beside"] = await decisions(fleet)
                figures["other_assigned"] = await beats
                other.kill()
                figures["other_killed"] = await decisions(fleet)
        rounds = (await fleet.told()).rounds
        if len(rounds) != 1 + 3 * DECISIONS:
            raise BenchmarkError(f"the fleet was in {len(rounds)} rounds")
    return figures


def two_leaders(agents: int) -> dict[str, float]:
    """Return all figures, in seconds."""
    with Scene() as scene, EtcdCluster(MEMBERS, is_durable=True) as etcd:
        return {"agents": agents} | fake_agents.run(measure(scene, etcd, agents))


if __name__ == "__main__":
    print(two_leaders(int(sys.argv[1]) if sys.argv[1:] else 100))
