"""Many rounds of chaos; ``make chaos ROUNDS=500``, or ``python -m tests.chaos.run --help``.

A round that fails keeps its logs and prints the command that repeats it. Exit code 1: one failed.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos import network
from tests.chaos.faults import forget_group
from tests.chaos.plan import FaultKind, Kind
from tests.chaos.world import FAKETIME
from tests.support.processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

ROUND_S = 240.0
"""After which a round hangs, and is killed with all its processes."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a round ended."""

    seed: int
    problems: tuple[str, ...]
    took_s: float
    skipped: tuple[str, ...] = ()


def live(seed: int, directory: Path, arguments: Sequence[str]) -> Result:
    """Live one round in a process of its own; its directory stays if anything did not hold."""
    command = [
        *(sys.executable, "-m", "tests.chaos.round", "--seed", str(seed)),
        *("--directory", str(directory), *arguments),
    ]
    env = {name: value for name, value in os.environ.items() if not name.startswith("DRUMBEAT_")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    began_at = time.monotonic()
    problems: list[str] = []
    skipped: list[str] = []
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=env, cwd=ROOT, timeout=ROUND_S, check=False
        )
        if (result := directory / "result.json").exists():
            told = json.loads(result.read_text())
            problems, skipped = told["problems"], told["skipped"]
        else:
            problems = [f"the round ended with {done.returncode}: {done.stderr[-2000:]}"]
    except subprocess.TimeoutExpired:
        problems = [f"the round did not end within {ROUND_S:g} s"]
    forget_group(directory.name)
    if not problems:
        shutil.rmtree(directory, ignore_errors=True)
    return Result(seed, tuple(problems), time.monotonic() - began_at, tuple(skipped))


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.run", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--seed", type=int, default=1, help="of the first round; the next has one more"
    )
    parser.add_argument("--jobs", type=int, default=2, help="rounds at once")
    parser.add_argument(
        "--for", dest="limit_s", type=float, help="begin no round after so many seconds"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        choices=[*map(str, Kind), *map(str, FaultKind)],
        help="kinds of runs and of faults; all of a sort if none of it is named",
    )
    parser.add_argument("--keep", type=Path, help="where failing rounds keep their logs")
    parser.add_argument("--before", default="", help="checkout that coordinators begin with")
    parser.add_argument("--mistake", default="", help="of coordinators, to see that it is noticed")
    return parser.parse_args(arguments)


def left_out() -> list[str]:
    """Return what this machine cannot do to a round."""
    reasons = []
    if not FAKETIME.exists():
        reasons.append("steps of clocks: no libfaketime (package libfaketime)")
    if not Path("/sys/fs/cgroup/memory").is_dir():
        reasons.append("running out of memory: no memory cgroup of version 1")
    if not Path("/dev/loop-control").exists():
        reasons.append("slow disks: no loop devices")
    return reasons


def main(arguments: Sequence[str] | None = None) -> int:
    """Live all rounds and print a summary."""
    chosen = options(arguments)
    if reason := network.missing():
        print(f"skipped: {reason}")
        return 0
    for reason in left_out():
        print(f"left out: {reason}")
    keep = chosen.keep or Path(tempfile.mkdtemp(prefix="drumbeat-chaos-"))
    keep.mkdir(parents=True, exist_ok=True)
    passed = [word for kind in chosen.only for word in ("--only", kind)]
    for name in ("before", "mistake"):
        if getattr(chosen, name):
            passed += [f"--{name}", getattr(chosen, name)]
    began_at = time.monotonic()
    results: list[Result] = []

    def take(seed: int) -> None:
        if chosen.limit_s is not None and time.monotonic() > began_at + chosen.limit_s:
            return
        result = live(seed, keep / f"seed-{seed}-{os.getpid()}", passed)
        results.append(result)
        repeat = ["python", "-m", "tests.chaos.run", "--rounds", "1", "--seed", str(seed), *passed]
        if result.problems:
            print(f"seed {seed} FAILED after {result.took_s:.0f} s")
            print("\n".join(f"  {problem}" for problem in result.problems))
            print(f"  logs: {keep}\n  repeat: {shlex.join(repeat)}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(chosen.jobs) as pool:
        list(pool.map(take, range(chosen.seed, chosen.seed + chosen.rounds)))
    return summary(results, time.monotonic() - began_at)


def summary(results: Sequence[Result], took_s: float) -> int:
    """Print what came of all rounds; return the exit code."""
    failed = sorted(result.seed for result in results if result.problems)
    rounds = len(results)
    mean_s = sum(result.took_s for result in results) / max(rounds, 1)
    print(f"{rounds} rounds in {took_s:.0f} s, {mean_s:.1f} s each; {rounds - len(failed)} clean")
    for reason, count in Counter(word for result in results for word in result.skipped).items():
        print(f"left out in {count} rounds: {reason}")
    if failed:
        print(f"failed seeds: {', '.join(map(str, failed))}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
