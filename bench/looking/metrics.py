"""What does a scrape of a coordinator with 10,000 agents in 100 runs cost, and how long is it?

Without a network: the core, a journal in memory and the exposition, in one event loop. The time is
that of the loop; beside it stands the longest stretch in which the others had no turn.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from bench.figures import OURS, OneOfEach, one_of_each
from bench.scale.core_cost import Fleet
from drumbeat.coordinator.cluster.model import Member
from drumbeat.coordinator.cluster.service import Cluster
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.registry.registry import Registry
from drumbeat.coordinator.journal.journal import Journal
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress
from drumbeat.coordinator.shell.driver import Driver
from drumbeat.coordinator.web.exposition import Exposition
from drumbeat.model import GroupState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drumbeat.coordinator.core import events as ev

RUNS, AGENTS, WORKERS = 100, 100, 8  # agents of each run
SCRAPES = 5
TICK_S = 0.0005


def events(run_id: str, agents: int, round_id: int | None) -> Iterator[ev.Event]:
    """Yield what brings a run into its round, or one beat of each agent in it."""
    fleet = Fleet(agents, run_id=run_id)
    workers = tuple(
        WorkerProgress(local_rank=rank, heartbeat_age_s=0.0, step=100) for rank in range(WORKERS)
    )
    for index in range(agents):
        if round_id is None:
            yield fleet.opened(index)
        else:
            yield fleet.beat_of(index, GroupState.RUNNING, workers=workers)


async def filled(runs: int, agents: int) -> Driver:
    """Return a driver with so many runs that train."""
    driver = Driver(Registry(Policy()), Journal(), Limits())
    for number in range(runs):
        run_id = f"run-of-the-benchmark-{number}"
        for round_id in (None, 0):
            for event in events(run_id, agents, round_id):
                effects = driver.registry.handle(event, now=driver.now())
                await driver.journal.write(effects, now=driver.now())
    return driver


def exposition(driver: Driver) -> Exposition:
    """Return what answers scrapes of it, each anew."""
    clock = itertools.count()
    found = Exposition(Limits(), None, clock=lambda: 1000.0 * next(clock))
    found.coordinator = server_of(driver)
    return found


def server_of(driver: Driver | None, notifier: Any = None) -> Any:
    """Return what a server that leads, or does not, is to an exposition."""
    term = None if driver is None else SimpleNamespace(driver=driver, number=1)
    cluster = Cluster(Member("", "head:29400"))
    return SimpleNamespace(term=term, cluster=cluster, notifier=notifier)


async def _scraped() -> OneOfEach:
    driver = await filled(RUNS, AGENTS)
    found = exposition(driver)
    gc.collect()
    gc.freeze()
    took, stretches, size = [], [0.0], 0
    is_over = False

    async def tick() -> None:
        while not is_over:
            began = time.perf_counter()
            await asyncio.sleep(0)
            stretches.append(time.perf_counter() - began)

    for _ in range(SCRAPES):
        began = time.perf_counter()
        size = len(await found.render())
        took.append(time.perf_counter() - began)
    ticking = asyncio.create_task(tick())
    await found.render()
    is_over = True
    await ticking
    return {
        "loop": min(took) * 1e3,
        "stretch": max(stretches) * 1e3,
        "size": size / 1e3,
    }


OF = f"/metrics at {RUNS * AGENTS:,} agents in {RUNS} runs"
QUESTIONS = one_of_each(lambda _side: asyncio.run(_scraped())).questions(
    "metrics",
    (
        ("loop", "ms", f"{OF}, event loop's time"),
        ("stretch", "ms", f"{OF}, longest stretch of it"),
        ("size", "kB", f"{OF}, size"),
    ),
    OURS,
    repeats=3,
)

if __name__ == "__main__":
    print(asyncio.run(_scraped()))
