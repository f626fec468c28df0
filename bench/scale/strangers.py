"""What do those cost a coordinator who know its port and nothing else, and the run that it has?

5,000 connections of each kind, one kind after the other, while a run of 100 agents goes on in a
process of its own. Beside each figure stands the same without an attack: ``none``.
"""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil

from bench.figures import OURS, OneOfEach, one_of_each
from bench.harness import BenchmarkError, Question, Scene
from bench.strangers.attacks import ATTACKS, Door
from bench.ways import Way

CONNECTIONS = 5_000
LASTING_S = 10.0
AGENTS = 100
TIMES = 3
NO_ATTACK = "none"


def start_run(scene: Scene, port: int) -> psutil.Popen:
    """Start a run that says what it has gone through when it is asked."""
    command = [sys.executable, "-m", "bench.strangers.live_run", str(port), str(AGENTS)]
    run = scene.run(command, "run", stdout=subprocess.PIPE, text=True)
    if next(run.stdout, "") != "running\n":
        raise BenchmarkError("the run did not begin")
    return run


def witnessed(run: psutil.Popen) -> dict[str, float]:
    """Return what the run has gone through since this was last asked."""
    run.send_signal(signal.SIGUSR1)
    found: dict[str, float] = json.loads(next(run.stdout))
    return found


def peak_mb(process: psutil.Popen) -> float:
    """Return the most memory that a process has had."""
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1000


def attack(name: str, door: Door) -> None:
    """Have the coordinator attacked once, from this process."""
    if name == NO_ATTACK:
        time.sleep(LASTING_S)
    else:
        asyncio.run(ATTACKS[name](door, CONNECTIONS, LASTING_S))


def figures(name: str, way: str) -> OneOfEach:
    """Return what one kind of attack does, three times in a row."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 20_000)), hard))
    with Scene(Way(way)) as scene:
        process, port = scene.start_coordinator()
        run = start_run(scene, port)
        memory = [process.memory_info().rss / 1e6]
        witnessed(run)
        for _ in range(TIMES):
            attack(name, Door(port, is_tls=Way(way) is Way.DEFAULT))
            memory.append(process.memory_info().rss / 1e6)
        seen = witnessed(run)
        return {
            "silence_ms": 1000 * seen["silence_s"],
            "answer_ms": 1000 * seen["answer_s"],
            "events": seen["events"],
            "memory_before_mb": memory[0],
            "memory_once_mb": memory[1],
            "memory_peak_mb": peak_mb(process),
            "memory_after_mb": memory[-1],
        }


def questions(name: str) -> list[Question]:
    """Return what is asked of one kind of attack."""
    during = name.replace("_", " ")
    rows = (
        ("silence_ms", "ms", f"longest silence of an agent that beats each second, {during}"),
        ("answer_ms", "ms", f"longest wait of a reader for an answer, {during}"),
        ("events", "", f"events of the run, {during}"),
        ("memory_before_mb", "MB", f"memory before, {during}"),
        ("memory_once_mb", "MB", f"memory after once, {during}"),
        ("memory_peak_mb", "MB", f"most memory, {during}"),
        ("memory_after_mb", "MB", f"memory after {TIMES} times, {during}"),
    )
    return one_of_each(partial(figures, name)).questions(f"strangers_{name}", rows, OURS)


QUESTIONS = tuple(each for name in (NO_ATTACK, *ATTACKS) for each in questions(name))
