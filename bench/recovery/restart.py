"""How long from the death of one worker until a whole new group is up, on two agents?"""

from __future__ import annotations

import time

from bench.harness import STEP_S, Question, Scene, free_port
from bench.ways import Way, in_each_way

WORLD_SIZE = 4


def kill_one_worker(scene: Scene) -> float | None:
    workers = scene.require_ranks(WORLD_SIZE)
    killed_at = time.monotonic()
    workers[-1].process.kill()
    renewed = scene.wait_for_ranks(WORLD_SIZE, STEP_S)
    return max(arrival.at for arrival in renewed) - killed_at if renewed else None


def restart_ours(scene: Scene, port: int, preload: str = "") -> float | None:
    """Start two of our agents, and return how long a restart of their workers takes."""
    for name in ("agent-0", "agent-1"):
        scene.start_ours(name, port, "2", preload=preload)
    return kill_one_worker(scene)


def restart_torchrun(scene: Scene) -> float | None:
    """Do the same with torchrun."""
    port = free_port()
    for name in ("agent-0", "agent-1"):
        scene.start_torchrun(name, port, "2")
    return kill_one_worker(scene)


def ours(way: Way) -> float | None:
    with Scene(way) as scene:
        return restart_ours(scene, scene.start_coordinator()[1])


def torchrun() -> float | None:
    with Scene() as scene:
        return restart_torchrun(scene)


QUESTIONS = (
    Question(
        name="restart",
        text="a worker is killed, 2 agents x 2 workers: all 4 new ones up after",
        unit="s",
        repeats=5,
        **in_each_way(ours),
        torchrun=torchrun,
        never=f"never ({STEP_S:g} s watched)",
    ),
)
