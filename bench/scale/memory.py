"""How much memory do the coordinator of a thousand agents and one agent need?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.figures import OneOfEach, assigned_fleet, in_scenes
from bench.harness import Question, Scene, free_port, memory_mb
from bench.ways import Way, in_each_way

if TYPE_CHECKING:
    import psutil

SESSIONS = 1000


async def coordinator(scene: Scene) -> OneOfEach:
    process, port = scene.start_coordinator()
    async with assigned_fleet(scene, port, SESSIONS):
        return {"coordinator": memory_mb([process])}


def agent_memory(scene: Scene, agent: psutil.Process) -> float:
    """Return the memory of ``agent`` and what it needs below it, without the workers."""
    workers = {arrival.process for arrival in scene.require_ranks(2)}
    below = set(agent.children(recursive=True)) - workers
    return memory_mb([agent, *below])


def our_agent(way: Way) -> float:
    with Scene(way) as scene:
        _, port = scene.start_coordinator()
        return agent_memory(scene, scene.start_ours("agent", port))


def torchrun_agent() -> float:
    with Scene() as scene:
        return agent_memory(scene, scene.start_torchrun("agent", free_port(), "1"))


QUESTIONS = (
    *in_scenes(coordinator).questions(
        "memory",
        [("coordinator", "MB", f"memory of the coordinator with {SESSIONS:,} agents")],
        repeats=3,
    ),
    Question(
        name="memory_agent",
        text="memory of one agent with 2 workers, without them",
        unit="MB",
        repeats=3,
        **in_each_way(our_agent),
        torchrun=torchrun_agent,
    ),
)
