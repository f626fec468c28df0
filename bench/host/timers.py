"""What do timers and heartbeats cost, how many are borne, and how late is an expiry?

Ours: workers of a standalone agent. Theirs: a ``FileTimerServer`` in a process of its
own, with the interval that torchrun gives it, and forks with a ``FileTimerClient``.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
from functools import partial
from typing import Any

from bench.cpu import shares
from bench.figures import BOTH, OneOfEach, one_of_each
from bench.harness import STEP_S, BenchmarkError, Question, Scene
from bench.host import timer_loads
from bench.ways import ROOT

WORKERS = 8
PAIRS_PER_S = 20_000
SECONDS = float(os.environ.get("DRUMBEAT_BENCH_SECONDS", "10"))
"""How long each load lasts; shorter only to try the scripts."""

IMPORT = (
    "import sys, time; {before}; begun = time.perf_counter(); {what}; "
    "print((time.perf_counter() - begun) * 1e3, 'grpc' in sys.modules)"
)
IMPORT_SDK = "import worker_sdk as sdk; sdk.expires, sdk.heartbeat, sdk.section, sdk.acquire"
# Of the standard library, what any larger program has loaded, and torch and grpc as well.
IMPORT_USUAL = "import dataclasses, datetime, inspect, logging, pathlib, threading, typing"


def start(scene: Scene, side: str, mode: str, workers: int, seconds: float = SECONDS) -> Any:
    """Start a launcher with workers that do what ``mode`` says; the log is in its name."""
    load = (mode, str(scene.directory), str(seconds), str(PAIRS_PER_S / WORKERS))
    if side == "torchrun":
        return scene.start(
            "bench.programs.timer_launcher_torch", *load, str(workers), name="launcher"
        )
    return scene.start(
        *("agent", "join", "--standalone", "--nproc-per-node", str(workers)),
        *(
            "--max-restarts",
            "0",
            "--module",
            "bench.workers.timers",
            *load,
            *scene.worker[1:],
        ),
        name="launcher",
    )


def read(scene: Scene, workers: int) -> list[dict[str, Any]]:
    """Return what the workers left; those that were killed left nothing."""
    paths = [scene.directory / f"{rank}.json" for rank in range(workers)]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def run(side: str, mode: str, workers: int) -> tuple[list[dict[str, Any]], int]:
    """Carry one run through; return what the workers left and the launcher's exit code."""
    with Scene() as scene:
        process = start(scene, side, mode, workers)
        code = process.wait(STEP_S + 2 * SECONDS)
        found = read(scene, workers)
        if not found:
            raise BenchmarkError(f"no worker came through\n{scene.log_ends()}")
        return found, code


def require_all(side: str, mode: str, workers: int) -> list[dict[str, Any]]:
    found, code = run(side, mode, workers)
    if code != 0 or len(found) != workers:
        raise BenchmarkError(f"{mode}: {len(found)} of {workers} workers, exit code {code}")
    return found


def cost(side: str) -> OneOfEach:
    (found,) = require_all(side, "cost", 1)
    if found["exceptions"]:
        print(f"{side}: {found['exceptions']} exceptions, left out", file=sys.stderr)
    return found


def sustained(side: str) -> OneOfEach:
    found, code = run(side, "sustained", WORKERS)
    exceptions = sum(figures["exceptions"] for figures in found)
    killed = WORKERS - len(found)
    rate = sum(figures["pairs_per_s"] for figures in found)
    print(
        f"{side}: {exceptions} exceptions, {killed} workers killed, exit code {code}, "
        f"{rate:,.0f} pairs/s",
        file=sys.stderr,
    )
    return {"exceptions": exceptions, "killed": killed, "rate": rate}


def expiry(side: str) -> OneOfEach:
    found = require_all(side, "expiry", WORKERS)
    late = [value for figures in found for value in figures["late_ms"]]
    missed = sum(figures["missed"] for figures in found)
    counts = {name: sum(figures[name] for figures in found) for name in ("exceptions", "strays")}
    print(f"{side}: {len(late)} signals came, {missed} did not; {counts}", file=sys.stderr)
    if missed or len(late) < 2:
        return {"p50": None, "p99": None}
    return {"p50": statistics.median(late), "p99": statistics.quantiles(late, n=100)[98]}


def agent_cpu() -> float:
    """Return the share of a core that the agent's own process used."""
    with Scene() as scene:
        # A little longer, so that all of them are at it all the while.
        agent = start(scene, "ours", "load", WORKERS, SECONDS + 2)
        scene.require_ranks(WORKERS)
        [percent] = asyncio.run(shares(SECONDS, agent))  # told in hundredths of a second
        if agent.wait(STEP_S) != 0:
            raise BenchmarkError(f"the load failed\n{scene.log_ends()}")
        return percent


def server_cpu() -> float:
    """Return the same of torch's server; there are no heartbeats."""
    with Scene() as scene:
        if start(scene, "torchrun", "load", WORKERS).wait(STEP_S + 2 * SECONDS) != 0:
            raise BenchmarkError(f"the load failed\n{scene.log_ends()}")
        return float(json.loads((scene.directory / "server.json").read_text())["cpu_percent"])


def import_time(what: str, before: str = "pass", *, may_load_grpc: bool = True) -> float:
    """Return how long an import takes in a new process, in milliseconds."""
    command = [sys.executable, "-c", IMPORT.format(what=what, before=before)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchmarkError(done.stderr[-500:])
    took, has_grpc = done.stdout.split()
    if has_grpc == "True" and not may_load_grpc:
        raise BenchmarkError(f"{what} loads grpc")
    return float(took)


def heartbeat_cost() -> float:
    return float(require_all("ours", "heartbeat", 1)[0]["p50"])


COST_TEXT = "timer acquired and released, caller's time"
LOAD_TEXT = (
    f"{WORKERS} workers, each {timer_loads.LOAD_PAIRS_PER_S} timers and "
    f"{timer_loads.LOAD_HEARTBEATS_PER_S} heartbeats a second"
)
SUSTAINED_TEXT = f"{WORKERS} workers, {PAIRS_PER_S:,} timers a second asked for, {SECONDS:g} s"
EXPIRY_TEXT = f"{WORKERS} workers, {timer_loads.OPEN_TIMERS} open timers each: expiry to signal"

QUESTIONS = (
    *one_of_each(cost).questions(
        "timers_cost",
        (("p50", "us", f"{COST_TEXT}, p50"), ("p99", "us", f"{COST_TEXT}, p99")),
        BOTH,
        repeats=3,
    ),
    *one_of_each(sustained).questions(
        "timers",
        (
            ("rate", "1/s", f"{SUSTAINED_TEXT}: reached"),
            ("exceptions", "calls", f"{SUSTAINED_TEXT}: exceptions"),
            ("killed", "workers", f"{SUSTAINED_TEXT}: killed for nothing"),
        ),
        BOTH,
        repeats=3,
    ),
    *one_of_each(expiry).questions(
        "timers_expiry",
        (("p50", "ms", f"{EXPIRY_TEXT}, p50"), ("p99", "ms", f"{EXPIRY_TEXT}, p99")),
        BOTH,
        repeats=3,
        never="without a signal",
    ),
    Question(
        name="timers_heartbeat",
        text="heartbeat with a step, caller's time, p50",
        unit="us",
        repeats=3,
        ours=heartbeat_cost,
    ),
    Question(
        name="timers_cpu",
        text=f"{LOAD_TEXT}: CPU of the process that watches (theirs: no heartbeats)",
        unit="% of a core",
        repeats=3,
        ours=agent_cpu,
        torchrun=server_cpu,
    ),
    Question(
        name="timers_import_names",
        text="import of what a worker needs for timers, in a bare Python",
        unit="ms",
        repeats=5,
        ours=partial(import_time, IMPORT_SDK, may_load_grpc=False),
        torchrun=partial(import_time, "import torch.distributed.elastic.timer"),
    ),
    Question(
        name="timers_import_sdk",
        text="import worker_sdk, nothing of it used, in a bare Python",
        unit="ms",
        repeats=5,
        ours=partial(import_time, "import worker_sdk", may_load_grpc=False),
    ),
    Question(
        name="timers_import_beside",
        text="import of what a worker needs for timers, the usual standard library loaded",
        unit="ms",
        repeats=5,
        ours=partial(import_time, IMPORT_SDK, IMPORT_USUAL, may_load_grpc=False),
    ),
    Question(
        name="timers_import_grpc",
        text="import of grpc, which a worker does not need for timers",
        unit="ms",
        repeats=5,
        ours=partial(import_time, "import grpc"),
    ),
)
