"""What is gained where workers are forked from a process that has imported what they need?"""

from __future__ import annotations

import time
from functools import partial

import psutil

from bench.harness import STEP_S, Question, Scene, free_port, memory_mb
from bench.recovery.restart import kill_one_worker
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
        for name in ("agent-0", "agent-1"):
            scene.start_ours(name, port, "2", preload=preload)
        return kill_one_worker(scene)


def restart_of_torchrun(stage: str) -> float | None:
    with Scene() as scene:
        trained(scene, stage)
        port = free_port()
        for name in ("agent-0", "agent-1"):
            scene.start_torchrun(name, port, "2")
        return kill_one_worker(scene)


def start(preload: str) -> float:
    """Return how long eight workers take from the command until the last is in its program."""
    with Scene() as scene:
        trained(scene, "import")
        options = ("--preload", preload) if preload else ()
        began = time.monotonic()
        scene.start(
            *("agent", "join", "--standalone", "--nproc-per-node", str(WORKERS)),
            *(*options, *scene.worker),
            name="agent",
        )
        return max(arrival.at for arrival in scene.require_ranks(WORKERS)) - began


def start_of_torchrun() -> float:
    with Scene() as scene:
        trained(scene, "import")
        began = time.monotonic()
        scene.start(
            *("torch.distributed.run", "--standalone", "--nproc-per-node", str(WORKERS)),
            *scene.worker,
            name="torchrun",
        )
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
        ours=partial(start, MODULES),
        cold=partial(start, ""),
        torchrun=start_of_torchrun,
    ),
    Question(
        name="warm_memory",
        text=f"{WORKERS} idle workers with torch imported, and what they come from: memory (PSS)",
        unit="MB",
        ours=partial(memory, MODULES),
        cold=partial(memory, ""),
    ),
)
