"""How long is the coordinator gone when it is killed and started again, and who notices?"""

from __future__ import annotations

import time

import grpc

from bench.harness import LOOPBACK, STEP_S, BenchmarkError, Question, Scene
from drumbeat.v1 import query_pb2, query_pb2_grpc

AGENTS = 2
WORLD_SIZE = 4
_LOOK_AGAIN_S = 0.005


def wait_until_reattached(port: int) -> None:
    """Return when all agents have a session again."""
    deadline = time.monotonic() + STEP_S
    with grpc.insecure_channel(f"{LOOPBACK}:{port}") as channel:
        runs = query_pb2_grpc.QueryServiceStub(channel)
        while time.monotonic() < deadline:
            request = query_pb2.ListAgentsRequest(run_id="bench")
            agents = runs.ListAgents(request, timeout=STEP_S).agents
            if sum(agent.is_connected for agent in agents) == AGENTS:
                return
            time.sleep(_LOOK_AGAIN_S)
    raise BenchmarkError(f"not all agents came back within {STEP_S:g} s")


def ours() -> float:
    with Scene() as scene:
        coordinator, port = scene.start_coordinator()
        for name in ("agent-0", "agent-1"):
            scene.start_ours(name, port, str(AGENTS))
        workers = scene.require_ranks(WORLD_SIZE)
        killed_at = time.monotonic()
        coordinator.kill()
        coordinator.wait()
        scene.start_coordinator(port)
        wait_until_reattached(port)
        took = time.monotonic() - killed_at
        if not all(worker.process.is_running() for worker in workers):
            raise BenchmarkError("a worker died with the coordinator")
        if scene.next_arrival(time.monotonic() + 1.0) is not None:
            raise BenchmarkError("a worker was started anew")
        return took


QUESTIONS = (
    Question(
        name="coordinator_back",
        text="the coordinator is killed and started again: all agents back after, no worker lost",
        unit="s",
        repeats=5,
        ours=ours,
    ),
)
