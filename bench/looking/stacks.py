"""How long does `coordinator stacks RUN` take, and what does it hold up?

The agents have 8 workers each, but no processes: they give some 5 KB of stacks for each worker at
once. So it is the question, the answers and the table that count; what an agent needs for the
stacks of real workers comes on top.
"""

from __future__ import annotations

from bench.harness import LOOPBACK, Scene
from bench.looking.commands import RUN, cpu_s, probed, time_of
from bench.looking.fleets import WORKERS, questions
from bench.scale.fake_agents import Fleet

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
