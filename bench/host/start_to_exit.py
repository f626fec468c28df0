"""How long does a run take whose two workers do next to nothing?"""

from __future__ import annotations

import time

from bench.harness import STEP_S, WORKER_WRITES, BenchmarkError, Question, Scene


def start_to_exit(*command: str) -> float:
    with Scene() as scene:
        began = time.monotonic()
        process = scene.start(*command, WORKER_WRITES, str(scene.directory), name="command")
        code = process.wait(STEP_S)
        took = time.monotonic() - began
        if code != 0 or not all((scene.directory / rank).exists() for rank in "01"):
            log = (scene.directory / "command.log").read_text()
            raise BenchmarkError(f"exit code {code}\n{log[-500:]}")
        return took


def ours() -> float:
    return start_to_exit("agent", "join", "--standalone", "--nproc-per-node", "2")


def torchrun() -> float:
    return start_to_exit("torch.distributed.run", "--standalone", "--nproc-per-node", "2")


QUESTIONS = (
    Question(
        name="start_to_exit",
        text="2 workers that write a file, standalone: command to exit",
        unit="s",
        repeats=5,
        ours=ours,
        torchrun=torchrun,
    ),
)
