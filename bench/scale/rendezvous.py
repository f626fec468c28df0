"""How long until N agents that come at once all have their ranks?"""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys

from bench.harness import LOOPBACK, ROOT, BenchmarkError, Question, Scene, free_port
from bench.scale import fake_agents

TORCH_S = 120.0


def ours(count: int) -> float:
    with Scene() as scene:
        _, port = scene.start_coordinator()
        return asyncio.run(fake_agents.time_to_assign(f"{LOOPBACK}:{port}", count))


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


def question(count: int, repeats: int, *, is_paired: bool) -> Question:
    return Question(
        name=f"rendezvous_{count}",
        text=f"{count:,} agents come at once: all have ranks after",
        unit="s",
        repeats=repeats,
        ours=functools.partial(ours, count),
        torchrun=functools.partial(torchrun, count) if is_paired else None,
        never=f"over {TORCH_S:g} s",
    )


QUESTIONS = (
    question(64, 3, is_paired=True),
    question(128, 1, is_paired=True),
    question(1000, 3, is_paired=False),
)
