"""How long from the death of one of two agents until the survivor has a new group?"""

from __future__ import annotations

import sys
import time

import psutil

from bench.harness import Question, Scene, free_port, wait_until_listening

WATCH_S = 20.0
NNODES = "1:2"


def is_alive(process: psutil.Process) -> bool:
    """Return whether it still runs; one that only waits for its new parent's notice does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def lose(scene: Scene, victim: psutil.Popen) -> float | None:
    """Kill the ``victim`` once all workers are up; return when the survivor has new ones."""
    scene.require_ranks(4)
    below_victim = victim.children(recursive=True)
    killed_at = time.monotonic()
    victim.kill()
    renewed = scene.wait_for_ranks(2, WATCH_S)
    orphans = sum(is_alive(process) for process in below_victim)
    print(f"agent_loss: {orphans} processes of the lost agent still run", file=sys.stderr)
    return max(arrival.at for arrival in renewed) - killed_at if renewed else None


def ours() -> float | None:
    with Scene() as scene:
        _, port = scene.start_coordinator()
        scene.start_ours("survivor", port, NNODES)
        victim = scene.start_ours("victim", port, NNODES)
        return lose(scene, victim)


def torchrun() -> float | None:
    with Scene() as scene:
        port = free_port()
        scene.start_torchrun("survivor", port, NNODES)
        # The first agent holds the store; losing that one is another story.
        wait_until_listening(port)
        victim = scene.start_torchrun("victim", port, NNODES)
        return lose(scene, victim)


QUESTIONS = (
    Question(
        name="agent_loss",
        text="an agent is killed, `--nnodes 1:2`: the survivor's new workers up after",
        unit="s",
        repeats=3,
        ours=ours,
        torchrun=torchrun,
        never=f"never ({WATCH_S:g} s watched)",
    ),
)
