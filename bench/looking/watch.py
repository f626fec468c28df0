"""What does `coordinator watch RUN` cost in steady state, at 10,000 agents?

Windows with and without it take turns, so that a change of load meets both. The coordinator's
share is the difference of its CPU time between the two, and by itself what it took of its core.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from functools import partial

import psutil

from bench.figures import one_of_each
from bench.harness import LOOPBACK, Question, Scene
from bench.looking.commands import RUN, SLOW_PACE, cpu_s, started
from bench.scale import fake_agents
from bench.scale.fake_agents import Fleet
from bench.ways import Way

SIZE, WORKERS = 10_000, 8
SETTLE_S = 5.0
WINDOW_S = 20.0
WINDOWS = 4


async def share(*processes: psutil.Process) -> list[float]:
    """Return what each takes of a core in a window."""
    before, began = [cpu_s(each) for each in processes], time.monotonic()
    await asyncio.sleep(WINDOW_S)
    lasted_s = time.monotonic() - began
    pairs = zip(processes, before, strict=True)
    return [100 * (cpu_s(each) - cpu) / lasted_s for each, cpu in pairs]


async def measure(scene: Scene) -> dict[str, float | None]:
    """Return percents of a core."""
    process, port = scene.start_coordinator(0, *SLOW_PACE)
    credentials, address = scene.credentials(port), f"{LOOPBACK}:{port}"
    without, differences, clients = [], [], []
    async with Fleet(address, SIZE, workers=WORKERS, credentials=credentials) as fleet:
        await fleet.time_to_assign()
        await asyncio.sleep(SETTLE_S)
        for _ in range(WINDOWS):
            [alone] = await share(process)
            way = ("--coordinator", address, *scene.way.options)
            watch = await started(scene, "coordinator", "watch", RUN, *way)
            assert watch.stdout is not None, "it is a pipe"
            await watch.stdout.readline()  # the first look, with all that is loaded for it
            reading = asyncio.create_task(watch.stdout.read())
            watched, client = await share(process, psutil.Process(watch.pid))
            watch.terminate()
            await asyncio.gather(reading, watch.wait())
            without.append(alone)
            differences.append(watched - alone)
            clients.append(client)
    return {
        "none": statistics.median(without),
        "coordinator": statistics.median(differences),
        "client": statistics.median(clients),
    }


def figures(way: str) -> dict[str, float | None]:
    """Return all figures of one fleet."""
    with Scene(Way(way)) as scene:
        return fake_agents.run(measure(scene))


RUNS = one_of_each(partial(figures))
QUESTIONS = tuple(
    Question(
        name=f"watch_cost_{name}",
        text=f"{text}, {SIZE:,} agents with {WORKERS} workers each",
        unit="% of a core",
        repeats=1,
        **RUNS.in_each_way(name),
    )
    for name, text in (
        ("none", "the coordinator, not watched"),
        ("coordinator", "the coordinator, more with one `watch`"),
        ("client", "the command `watch` itself"),
    )
)
