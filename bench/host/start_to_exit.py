"""How long does a run take whose two workers do next to nothing?"""

from __future__ import annotations

import time
from functools import partial

from bench.harness import STEP_S, WORKER_WRITES, BenchmarkError, Question, Scene
from bench.ways import Way, in_each_way


def start_to_exit(*command: str, way: Way = Way.DEFAULT) -> float:
    with Scene(way) as scene:
        began = time.monotonic()
        process = scene.start(*command, WORKER_WRITES, str(scene.directory), name="command")
        code = process.wait(STEP_S)
        took = time.monotonic() - began
        if code != 0 or not all((scene.directory / rank).exists() for rank in "01"):
            log = (scene.directory / "command.log").read_text()
            raise BenchmarkError(f"exit code {code}\n{log[-500:]}")
        return took


def ours(way: Way) -> float:
    return start_to_exit("agent", "join", "--standalone", "--nproc-per-node", "2", way=way)


def torchrun() -> float:
    return start_to_exit("torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def start_with_coordinator(way: Way) -> float:
    with Scene(way) as scene:
        _, port = scene.start_coordinator()
        began = time.monotonic()
        scene.start_ours("agent", port)
        return max(arrival.at for arrival in scene.require_ranks(2)) - began


QUESTIONS = (
    Question(
        name="start_to_exit",
        text="2 workers that write a file, standalone: command to exit",
        unit="s",
        repeats=5,
        ours=partial(ours, Way.DEFAULT),
        before=partial(ours, Way.BEFORE),  # in one process nothing is encrypted anyway
        torchrun=torchrun,
    ),
    Question(
        name="start_with_coordinator",
        text="2 workers, a coordinator runs: command to the last one's first instruction",
        unit="s",
        repeats=5,
        **in_each_way(start_with_coordinator),
    ),
)
