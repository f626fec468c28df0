"""How long is the coordinator gone when it is killed and started again, and who notices?"""

from __future__ import annotations

import asyncio
import time

from bench import cpu
from bench.figures import OneOfEach, in_scenes
from bench.harness import LOOPBACK, STEP_S, BenchmarkError, Question, Scene
from bench.scale.fleet_processes import cpu_s, fleet_of
from bench.ways import Way, in_each_way
from drumbeat.coordinator.access.calls import call_channel
from drumbeat.v1 import query_pb2, query_pb2_grpc

AGENTS = 2
WORLD_SIZE = 4
FLEET = 1_000
_LOOK_AGAIN_S = 0.005


def wait_until_reattached(scene: Scene, port: int) -> None:
    """Return when all agents have a session again."""
    deadline = time.monotonic() + STEP_S
    with call_channel(scene.access, f"{LOOPBACK}:{port}", use_proxy=False) as (channel, caller):
        runs = query_pb2_grpc.QueryServiceStub(channel)
        while time.monotonic() < deadline:
            request = query_pb2.ListAgentsRequest(run_id="bench")
            agents = runs.ListAgents(request, timeout=STEP_S, metadata=caller).agents
            if sum(agent.is_connected for agent in agents) == AGENTS:
                return
            time.sleep(_LOOK_AGAIN_S)
    raise BenchmarkError(f"not all agents came back within {STEP_S:g} s")


def ours(way: Way) -> float:
    with Scene(way) as scene:
        coordinator, port = scene.start_coordinator()
        for name in ("agent-0", "agent-1"):
            scene.start_ours(name, port, str(AGENTS))
        workers = scene.require_ranks(WORLD_SIZE)
        killed_at = time.monotonic()
        coordinator.kill()
        coordinator.wait()
        scene.start_coordinator(port)
        wait_until_reattached(scene, port)
        took = time.monotonic() - killed_at
        if not all(worker.process.is_running() for worker in workers):
            raise BenchmarkError("a worker died with the coordinator")
        if scene.next_arrival(time.monotonic() + 1.0) is not None:
            raise BenchmarkError("a worker was started anew")
        return took


async def come_back(scene: Scene, agents: int = FLEET) -> OneOfEach:
    """Return how long after the death of the coordinator, and after its return, all are back.

    ``coordinator`` and ``generator`` are what it and the agents took of the processor meanwhile.
    """
    coordinator, port = scene.start_coordinator()
    credentials = scene.credentials(port)
    async with fleet_of(f"{LOOPBACK}:{port}", agents, credentials=credentials) as fleet:
        await fleet.time_to_assign()
        killed_at, generator = time.monotonic(), cpu_s()
        coordinator.kill()
        coordinator.wait()
        coordinator, _ = await asyncio.to_thread(scene.start_coordinator, port)
        ready_at = time.monotonic()
        back_at = await fleet.all_back_at()
        rounds = (await fleet.told()).rounds
        if rounds != {0}:
            raise BenchmarkError(f"the fleet was in the rounds {rounds}")
        return {
            "killed": back_at - killed_at,
            "ready": back_at - ready_at,
            "coordinator": cpu.tree_s(coordinator),
            "generator": cpu_s() - generator,
        }


QUESTIONS = (
    Question(
        name="coordinator_back",
        text="the coordinator is killed and started again: all agents back after, no worker lost",
        unit="s",
        repeats=5,
        **in_each_way(ours),
    ),
    *in_scenes(come_back).questions(
        f"coordinator_back_{FLEET}",
        (
            (
                "ready",
                "s",
                f"the coordinator is back: {FLEET:,} agents on the same cores attached after",
            ),
            ("killed", "s", "the same, since it was killed"),
        ),
        repeats=5,
    ),
)
