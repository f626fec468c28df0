"""What is gained where workers are forked from a process that has imported what they need?"""

from __future__ import annotations

import time
from functools import partial

import psutil

from bench.harness import STEP_S, Question, Scene, memory_mb
from bench.recovery.restart import restart_ours, restart_torchrun
from bench.ways import ROOT

WORKER_TRAINS = str(ROOT / "bench" / "workers" / "trains.py")
MODULES = "torch"
WORKERS = 8


def trained(scene: Scene, stage: str) -> Scene:
    """Have the workers of a scene import torch, and train a step if the stage is "step"."""
    scene.worker = (WORKER_TRAINS, *scene.worker[1:], stage)
    return scene


def restart(stage: str, preload: str) -> float | None:
    with Scene() as scene:
        _, port = trained(scene, stage).start_coordinator()
        return restart_ours(scene, port, preload)


def restart_of_torchrun(stage: str) -> float | None:
    with Scene() as scene:
        return restart_torchrun(trained(scene, stage))


def start(*launcher: str) -> float:
    """Return how long eight workers take from the command until the last is in its program."""
    with Scene() as scene:
        trained(scene, "import")
        options = ("--standalone", "--nproc-per-node", str(WORKERS))
        began = time.monotonic()
        scene.start(*launcher, *options, *scene.worker, name="launcher")
        return max(arrival.at for arrival in scene.require_ranks(WORKERS)) - began


def memory(preload: str) -> float:
    """Return the memory of eight idle workers, and of what they were forked from, in MB."""
    with Scene() as scene:
        _, port = trained(scene, "import").start_coordinator()
        agent = scene.start_ours("agent", port, workers=WORKERS, preload=preload)
        workers = [arrival.process for arrival in scene.require_ranks(WORKERS)]
        supervisor = workers[0].parent()
        assert supervisor is not None, f"{agent} has ended"
        return memory_mb([psutil.Process(each.pid) for each in supervisor.children()])


QUESTIONS = (
    Question(
        name="warm_restart_import",
        text="a worker is killed, 2 agents x 2 workers: all 4 new ones have torch imported after",
        unit="s",
        repeats=5,
        ours=partial(restart, "import", MODULES),
        cold=partial(restart, "import", ""),
        torchrun=partial(restart_of_torchrun, "import"),
        never=f"never ({STEP_S:g} s watched)",
    ),
    Question(
        name="warm_restart_step",
        text="the same: all 4 new ones have made their first step of DDP (gloo) after",
        unit="s",
        repeats=5,
        ours=partial(restart, "step", MODULES),
        cold=partial(restart, "step", ""),
        torchrun=partial(restart_of_torchrun, "step"),
        never=f"never ({STEP_S:g} s watched)",
    ),
    Question(
        name="warm_start",
        text=f"{WORKERS} workers that import torch, standalone: command to all past the import",
        unit="s",
        repeats=3,
        ours=partial(start, "agent", "join", "--preload", MODULES),
        cold=partial(start, "agent", "join"),
        torchrun=partial(start, "torch.distributed.run"),
    ),
    Question(
        name="warm_memory",
        text=f"{WORKERS} idle workers with torch imported, and what they come from: memory (PSS)",
        unit="MB",
        ours=partial(memory, MODULES),
        cold=partial(memory, ""),
    ),
)
