"""How long does `coordinator stacks RUN` take, and what does it hold up?

The agents have 8 workers each, but no processes: they give some 5 KB of stacks for each worker at
once. So it is the question, the answers and the table that count; what an agent needs for the
stacks of real workers comes on top.
"""

from __future__ import annotations

from functools import partial

from bench.figures import one_of_each
from bench.harness import LOOPBACK, Question, Scene
from bench.looking.commands import RUN, cpu_s, probed, time_of
from bench.scale import fake_agents
from bench.scale.fake_agents import Fleet
from bench.ways import Way

WORKERS = 8
RANKS = (1_000, 10_000)


async def measure(scene: Scene, ranks: int) -> dict[str, float | None]:
    """Return the seconds of the command as a user runs it, and the longest stop meanwhile."""
    coordinator, port = probed(scene)
    address, credentials = f"{LOOPBACK}:{port}", scene.credentials(port)
    hosts = ranks // WORKERS
    async with Fleet(address, hosts, workers=WORKERS, credentials=credentials) as fleet:
        await fleet.time_to_assign()
        await coordinator.longest_stop_ms()
        before = cpu_s(coordinator.process)
        return {
            "time": await time_of(scene, port, "stacks", RUN),
            "cpu": cpu_s(coordinator.process) - before,
            "stop": await coordinator.longest_stop_ms(),
        }


def figures(ranks: int, way: str) -> dict[str, float | None]:
    """Return all figures of one fleet."""
    with Scene(Way(way)) as scene:
        return fake_agents.run(measure(scene, ranks))


def questions(ranks: int) -> list[Question]:
    """Return what is asked of a fleet."""
    runs = one_of_each(partial(figures, ranks))
    return [
        Question(
            name=f"stacks_{ranks}_{name}",
            text=f"{text}, {ranks:,} ranks of {ranks // WORKERS:,} agents",
            unit=unit,
            repeats=3,
            **runs.in_each_way(name),
        )
        for name, unit, text in (
            ("time", "s", "`coordinator stacks`"),
            ("cpu", "s", "CPU of the coordinator meanwhile, with some beats"),
            ("stop", "ms", "longest stop of the coordinator's event loop during it"),
        )
    ]


QUESTIONS = tuple(question for ranks in RANKS for question in questions(ranks))
