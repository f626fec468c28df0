"""How long until N agents that come at once all have their ranks?

Our agents are tasks of this process, on the coordinator's cores: what a handshake costs an agent,
which is about as much as it costs the coordinator, is part of the time.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import time

from bench.cpu import cpu_s
from bench.figures import OneOfEach, in_scenes
from bench.harness import LOOPBACK, BenchmarkError, Question, Scene, free_port
from bench.scale import fake_agents
from bench.scale.fake_agents import Fleet
from bench.ways import ROOT

TORCH_S = 120.0


async def measure(scene: Scene, count: int) -> OneOfEach:
    coordinator, port = scene.start_coordinator()
    credentials = scene.credentials(port)
    before_s, began = cpu_s(coordinator), time.process_time()
    async with Fleet(f"{LOOPBACK}:{port}", count, credentials=credentials) as fleet:
        assigned_s = await fleet.time_to_assign()
        agents_s, coordinator_s = time.process_time() - began, cpu_s(coordinator) - before_s
    return {"assigned": assigned_s, "coordinator": coordinator_s, "agents": agents_s}


def ours(count: int) -> float | None:
    with Scene() as scene:
        return fake_agents.run(measure(scene, count))["assigned"]


def torchrun(count: int) -> float | None:
    command = [
        sys.executable,
        "-m",
        "bench.programs.torch_rendezvous",
        str(count),
        str(free_port()),
    ]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=TORCH_S, check=True
        )
    except subprocess.TimeoutExpired:
        return None
    except subprocess.CalledProcessError as error:
        raise BenchmarkError(error.stderr[-500:]) from error
    return float(done.stdout)


def paired(count: int, repeats: int) -> Question:
    return Question(
        name=f"rendezvous_{count}",
        text=f"{count:,} agents come at once: all have ranks after",
        unit="s",
        repeats=repeats,
        ours=functools.partial(ours, count),
        torchrun=functools.partial(torchrun, count),
        never=f"over {TORCH_S:g} s",
    )


QUESTIONS = (
    paired(64, 3),
    paired(128, 1),
    *in_scenes(functools.partial(measure, count=1_000)).questions(
        "rendezvous_1000",
        (
            ("assigned", "s", "1,000 agents on the same cores come at once: all have ranks after"),
            ("coordinator", "s", "the same: CPU of the coordinator"),
            ("agents", "s", "the same: CPU of the agents, who do their part of handshakes"),
        ),
        repeats=5,
    ),
)
