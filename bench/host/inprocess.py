"""What does it cost to start a function again within its processes, beside NVRx?

Four ranks, gloo. Ours: workers of a standalone agent. NVRx: four processes with its
wrapper, as it is given and with the shortest intervals that its store bears; it is in
an environment of its own, see ``nvrx_environment``.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from functools import partial
from typing import Any

import psutil

from bench.figures import OURS, Figures, Runs
from bench.harness import LOOPBACK, BenchmarkError, Question, Scene, free_port
from bench.programs import nvrx_environment

RANKS = 4
SPARES = 2
RESTARTS = int(os.environ.get("DRUMBEAT_BENCH_RESTARTS", "10"))
"""Faults per run; fewer only to try the scripts."""
EARLY = 20
LATE = int(os.environ.get("DRUMBEAT_BENCH_MANY_RESTARTS", "200"))
START_S = 60.0
PER_RESTART_S = 10.0
STUCK_S = 30.0
"""How long a rank that is not freed is watched."""

Notes = dict[str, dict[int, list[tuple[float, Any]]]]
"""By name and iteration: when, and what more."""


def start_nvrx(scene: Scene, side: str, mode: str, count: int) -> list[psutil.Popen]:
    """Start a process per rank, with an environment as a launcher gives it."""
    python, port = nvrx_environment.python(), str(free_port())
    processes = []
    for rank in range(RANKS):
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "MASTER_ADDR": LOOPBACK}
        environment = {**os.environ, **{name: str(value) for name, value in names.items()}}
        environment |= {"MASTER_PORT": port, "TORCH_CPP_LOG_LEVEL": "ERROR"}
        command = [python, "-m", "bench.workers.inprocess", side, mode]
        command += [str(scene.directory), str(count)]
        processes.append(scene.run(command, f"rank-{rank}", env=environment))
    return processes


def start_ours(scene: Scene, mode: str, count: int, workers: int) -> list[psutil.Popen]:
    arguments = ("agent", "join", "--standalone", "--nproc-per-node", str(workers))
    worker = (
        "--module",
        "bench.workers.inprocess",
        "ours",
        mode,
        str(scene.directory),
        str(count),
    )
    # What is measured are many restarts in a row without a step between them.
    options = ("--max-restarts", "0", "--restart-delay-max", "0")
    return [scene.start(*arguments, *options, *worker, name="agent")]


def read(scene: Scene) -> Notes:
    """Return what the ranks noted."""
    notes: Notes = defaultdict(lambda: defaultdict(list))
    for path in scene.directory.glob("notes-*"):
        for line in path.read_text().splitlines():
            name, iteration, at, more = line.split(" ", 3)
            notes[name][int(iteration)].append((float(at), json.loads(more)))
    return notes


def run(
    side: str, mode: str, count: int, *, workers: int = RANKS, limit_s: float | None = None
) -> Notes | None:
    """Carry a run through; return what was noted, None if it came to no end within the limit.

    Raises:
        BenchmarkError: It failed, or came to no end and has no limit.
    """
    with Scene() as scene:
        if side == "ours":
            processes = start_ours(scene, mode, count, workers)
        else:
            processes = start_nvrx(scene, side, mode, count)
        timeout_s = START_S + (limit_s or PER_RESTART_S * max(count, 1))
        _, alive = psutil.wait_procs(processes, timeout=timeout_s)
        if alive and limit_s is not None:
            return None
        if alive or any(process.returncode != 0 for process in processes):
            raise BenchmarkError(f"{side}, {mode} did not come through\n{scene.log_ends()}")
        return read(scene)


def restarts(side: str, mode: str, count: int, workers: int = RANKS) -> Figures:
    """Return how long each restart took, from just before the fault, in milliseconds."""
    notes = run(side, mode, count, workers=workers)
    assert notes is not None, "there is no limit"
    figures: Figures = {"inside": [], "group": []}
    for iteration in range(count):
        ((fault_at, _),) = notes["fault"][iteration]
        entered = [at for at, _ in notes["enter"][iteration + 1]]
        ready = [at for at, _ in notes["ready"][iteration + 1]]
        # A spare does not enter.
        if len(entered) != RANKS or len(ready) != RANKS:
            raise BenchmarkError(f"{len(entered)} of {RANKS} ranks came back")
        figures["inside"].append((max(entered) - fault_at) * 1e3)
        figures["group"].append((max(ready) - fault_at) * 1e3)
    return figures


def wait_in_collective(side: str) -> float | None:
    """Return the same for ranks that wait for the one that fails, None if they never come."""
    notes = run(side, "collective", 1, limit_s=None if side == "ours" else STUCK_S)
    if notes is None:
        return None
    ((fault_at, _),) = notes["fault"][0]
    return (max(at for at, _ in notes["enter"][1]) - fault_at) * 1e3


def pings(side: str) -> Figures:
    notes = run(side, "ping", 0)
    assert notes is not None, "there is no limit"
    ((_, figures),) = notes["pings"][0]
    return {name: [value] for name, value in figures.items()}


def growth(side: str) -> Figures:
    """Return by how much the ranks grew, the one that grew most."""
    notes = run(side, "memory", LATE)
    assert notes is not None, "there is no limit"
    first = {more["rank"]: more for _, more in notes["enter"][min(EARLY, LATE - 1)]}
    last = {more["rank"]: more for _, more in notes["enter"][LATE]}
    if len(last) != RANKS:
        raise BenchmarkError(f"{len(last)} of {RANKS} ranks are left")
    most = {
        name: max(last[rank][name] - first[rank][name] for rank in first)
        for name in ("rss", "threads", "fds")
    }
    grown = [f"{last[rank]['rss'] / 1e6:.1f}" for rank in sorted(last)]
    print(f"{side}: {', '.join(grown)} MB after {LATE} restarts; {most}", file=sys.stderr)
    return {"rss": [most["rss"] / 1e6], "threads": [most["threads"]], "fds": [most["fds"]]}


RAISES = Runs(partial(restarts, mode="raise", count=RESTARTS))
LOADS = Runs(partial(restarts, mode="loader", count=RESTARTS))
KILLS = Runs(partial(restarts, mode="kill", count=SPARES, workers=RANKS + SPARES))
PINGS = Runs(pings)
TUNED = f"NVRx {nvrx_environment.VERSION}, 0.1 s intervals"
DEFAULT = f"NVRx {nvrx_environment.VERSION}, as it is"
RAISE_TEXT = f"in process: one of {RANKS} ranks raises: all back in the function after"
LOADER_TEXT = f"{RAISE_TEXT[:-6]} while rank 0 iterates over a DataLoader with workers: after"
GROUP_TEXT = f"in process: one of {RANKS} ranks raises: all in a new process group after"
GROWTH_TEXT = f"in process: growth from {EARLY} to {LATE} restarts, the rank that grew most"


def beside(runs: Runs, figure: str, side: str, name: str, text: str, unit: str) -> Question:
    """Return the question for a figure of ours and of a side of NVRx."""
    return Question(
        name=name,
        text=text,
        unit=unit,
        repeats=RESTARTS if unit == "ms" else 3,
        # Each question has figures of its own, measured beside the other side's.
        ours=partial(runs.figure, "ours", figure),
        torchrun=partial(runs.figure, side, figure),
        rival=TUNED if side == "tuned" else DEFAULT,
    )


QUESTIONS = (
    beside(RAISES, "inside", "tuned", "inprocess_raise_tuned", RAISE_TEXT, "ms"),
    beside(RAISES, "inside", "default", "inprocess_raise_default", RAISE_TEXT, "ms"),
    beside(RAISES, "group", "tuned", "inprocess_group_tuned", GROUP_TEXT, "ms"),
    beside(RAISES, "group", "default", "inprocess_group_default", GROUP_TEXT, "ms"),
    beside(LOADS, "inside", "tuned", "inprocess_loader", LOADER_TEXT, "ms"),
    Question(
        name="inprocess_collective",
        text="in process: the same, while the others wait for it in an all_reduce",
        unit="ms",
        ours=partial(wait_in_collective, "ours"),
        torchrun=partial(wait_in_collective, "tuned"),
        never=f"never ({STUCK_S:g} s watched)",
        rival=TUNED,
    ),
    Question(
        name="inprocess_spare",
        text=f"in process: one of {RANKS} ranks is killed, a spare steps in: "
        "all in the function after",
        unit="ms",
        repeats=3 * SPARES,
        ours=partial(KILLS.figure, "ours", "inside"),
    ),
    *(
        beside(
            PINGS,
            f"{kind}_{percentile}",
            "default",
            f"inprocess_{kind}_{percentile}",
            f"in process: call.ping(){text}, caller's time, {percentile}",
            "us",
        )
        for kind, text in (("ping", ""), ("atomic", " within call.atomic()"))
        for percentile in ("p50", "p99")
    ),
    *Runs(growth).questions(
        "inprocess_growth",
        (
            ("rss", "MB", f"{GROWTH_TEXT}: memory"),
            ("threads", "threads", f"{GROWTH_TEXT}: threads"),
            ("fds", "descriptors", f"{GROWTH_TEXT}: descriptors"),
        ),
        OURS,
    ),
)
