"""How long until N agents that come at once all have their ranks?

Our agents are tasks of this process, on the coordinator's cores: what a handshake costs an agent,
which is about as much as it costs the coordinator, is part of the time.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import time

from bench.figures import one_of_each
from bench.harness import LOOPBACK, BenchmarkError, Question, Scene, free_port
from bench.scale import fake_agents
from bench.scale.fake_agents import Fleet
from bench.ways import ROOT, Way

TORCH_S = 120.0


def ours(count: int, way: str = Way.DEFAULT) -> dict[str, float | None]:
    with Scene(Way(way)) as scene:
        coordinator, port = scene.start_coordinator()
        credentials = scene.credentials(port)

        async def measure() -> dict[str, float | None]:
            address = f"{LOOPBACK}:{port}"
            before, began = coordinator.cpu_times(), time.process_time()
            async with Fleet(address, count, credentials=credentials) as fleet:
                assigned_s = await fleet.time_to_assign()
                agents_s, after = time.process_time() - began, coordinator.cpu_times()
            coordinator_s = after.user - before.user + after.system - before.system
            return {"assigned": assigned_s, "coordinator": coordinator_s, "agents": agents_s}

        return fake_agents.run(measure())


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
        ours=lambda: ours(count)["assigned"],
        torchrun=functools.partial(torchrun, count),
        never=f"over {TORCH_S:g} s",
    )


THOUSAND = one_of_each(functools.partial(ours, 1000))

QUESTIONS = (
    paired(64, 3),
    paired(128, 1),
    *(
        Question(
            name=f"rendezvous_1000{suffix}",
            text=text,
            unit="s",
            repeats=5,
            **THOUSAND.in_each_way(figure),
        )
        for figure, suffix, text in (
            ("assigned", "", "1,000 agents on the same cores come at once: all have ranks after"),
            ("coordinator", "_coordinator", "the same: CPU of the coordinator"),
            ("agents", "_agents", "the same: CPU of the agents, who do their part of handshakes"),
        )
    ),
)
