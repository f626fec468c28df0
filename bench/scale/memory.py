"""How much memory do the coordinator of a thousand agents and one agent need?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.figures import assigned_fleet
from bench.harness import Question, Scene, free_port, memory_mb
from bench.scale import fake_agents
from bench.ways import Way, in_each_way

if TYPE_CHECKING:
    import psutil

SESSIONS = 1000


async def coordinator_with_sessions(scene: Scene) -> float:
    process, port = scene.start_coordinator()
    async with assigned_fleet(scene, port, SESSIONS):
        return memory_mb([process])


def coordinator(way: Way) -> float:
    with Scene(way) as scene:
        return fake_agents.run(coordinator_with_sessions(scene))


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
    Question(
        name="memory_coordinator",
        text=f"memory of the coordinator with {SESSIONS:,} agents",
        unit="MB",
        repeats=3,
        **in_each_way(coordinator),
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
