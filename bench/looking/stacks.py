"""How long does `coordinator stacks RUN` take, and what does it hold up?

The agents have 8 workers each, but no processes: they give some 5 KB of stacks for each worker at
once. So it is the question, the answers and the table that count; what an agent needs for the
stacks of real workers comes on top.
"""

from __future__ import annotations

from bench.cpu import cpu_s
from bench.figures import OneOfEach, assigned_fleet
from bench.harness import Scene
from bench.looking.commands import RUN, probed, time_of
from bench.looking.fleets import WORKERS, questions

RANKS = (1_000, 10_000)


async def measure(scene: Scene, ranks: int) -> OneOfEach:
    """Return the seconds of the command as a user runs it, and the longest stop meanwhile."""
    coordinator, port = probed(scene)
    async with assigned_fleet(scene, port, ranks // WORKERS, WORKERS):
        await coordinator.longest_stop_ms()
        before = cpu_s(coordinator.process)
        return {
            "time": await time_of(scene, port, "stacks", RUN),
            "cpu": cpu_s(coordinator.process) - before,
            "stop": await coordinator.longest_stop_ms(),
        }


QUESTIONS = questions(
    "stacks",
    measure,
    RANKS,
    (
        ("time", "s", "`coordinator stacks`"),
        ("cpu", "s", "CPU of the coordinator meanwhile, with some beats"),
        ("stop", "ms", "longest stop of the coordinator's event loop during it"),
    ),
)
