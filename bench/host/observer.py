"""What does the observer cost a worker: its start, and steps of many small collectives?

Both sides of each pair run in turn, so that what else the machine does counts for both.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.harness import STEP_S, BenchmarkError, Question, Scene
from bench.ways import ROOT
from drumbeat.agent.workers.supervisor.spawner import STARTUP
from worker_sdk.context import OBSERVER, WORKER_TOKEN

REDUCES = str(ROOT / "bench" / "workers" / "reduces.py")
STARTS = 40
PAIRS, STEPS = 5, 5


def start_ms() -> float:
    """Return how much longer an interpreter takes to start and end with it; medians."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place, socket.socket(socket.AF_UNIX) as agent:
        agent.bind(f"{place}/observers")
        agent.listen(2 * STARTS)
        plain = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
        observed = plain | {
            "PYTHONPATH": STARTUP,
            OBSERVER: f"{place}/observers",
            WORKER_TOKEN: "token",
        }
        _start(observed)  # compiles it
        pairs = [(_start(plain), _start(observed)) for _ in range(STARTS)]
    without, with_it = map(statistics.median, zip(*pairs, strict=True))
    longer_ms: float = (with_it - without) * 1e3
    return longer_ms


def _start(environment: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], env=environment, check=True)
    return time.perf_counter() - began


def reduces_ratio() -> float:
    """Return the time of a step with it, in times of that without; medians of pairs."""
    return statistics.median(_step_s() / _step_s("--no-observer") for _ in range(PAIRS))


def _step_s(*options: str) -> float:
    with Scene() as scene:
        program = (REDUCES, str(scene.directory), str(STEPS))
        argv = ("agent", "join", "--standalone", "--nproc-per-node", "2", *options, *program)
        process = scene.start(*argv, name="command")
        if process.wait(STEP_S) != 0:
            log = (scene.directory / "command.log").read_text()
            raise BenchmarkError(log[-500:])
        return float(Path(scene.directory, "median").read_text())


QUESTIONS = (
    Question(
        name="observer_start",
        text="the observer: a Python worker's start and end take so much longer",
        unit="ms",
        repeats=3,
        ours=start_ms,
    ),
    Question(
        name="observer_step",
        text="the observer: a step of 1,000 small all_reduces, in times of one without",
        unit="",
        ours=reduces_ratio,
    ),
)
