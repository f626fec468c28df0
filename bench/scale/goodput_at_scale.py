"""What of a large job's time would failures take, and how much of that is the control plane's?

Pure: virtual time, seeded. Failures come as Meta saw them while Llama 3 was trained (The Llama 3
Herd of Models, arXiv 2407.21783, table 5): 419 unexpected interruptions in 54 days on 16,384 GPUs;
and ten times as often. Our times are measured (``docs/scale.json``), those of others are published
or their defaults. What the user's training needs after a failure is the same for all.

``python -m bench.scale.goodput_at_scale [--seeds N]`` prints a table.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import accumulate
from random import Random
from typing import TYPE_CHECKING, Any

from bench.ways import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

DAYS, GPUS, GPUS_PER_HOST = 54, 16_384, 8
HOSTS = GPUS // GPUS_PER_HOST
RATES = (1, 10)
SEEDS = 5
DAY_S = 86_400.0


class Kind(StrEnum):
    """How a failure is met."""

    WORKER = "a worker exits"
    HOST = "a host is silent"
    HANG = "workers hang"


class Part(StrEnum):
    """What time is lost to; the first three are the control plane's own."""

    FIND = "find"
    ASSIGN = "decide and assign"
    PROCESSES = "stop and start processes"
    LIMIT = "limit of a hang"
    START = "imports, process groups"
    LOAD = "load the checkpoint"
    REPEAT = "repeated steps"


OWN = (Part.FIND, Part.ASSIGN, Part.PROCESSES)

# Table 5 of the paper. How each cause is met is our assumption: hardware that the driver or the
# kernel reports ends a worker, a machine that goes away is silent, and networks make workers hang.
CAUSES: tuple[tuple[str, int, Kind], ...] = (
    ("faulty GPU", 148, Kind.WORKER),
    ("GPU HBM3 memory", 72, Kind.WORKER),
    ("software bug", 54, Kind.WORKER),
    ("network switch or cable", 35, Kind.HANG),
    ("unplanned host maintenance", 32, Kind.HOST),
    ("GPU SRAM memory", 19, Kind.WORKER),
    ("GPU system processor", 17, Kind.WORKER),
    ("NIC", 7, Kind.HANG),
    ("NCCL watchdog timeouts", 7, Kind.HANG),
    ("silent data corruption", 6, Kind.WORKER),
    ("GPU thermal interface and sensor", 6, Kind.WORKER),
    ("SSD", 3, Kind.WORKER),
    ("power supply", 3, Kind.HOST),
    ("server chassis", 2, Kind.HOST),
    ("IO expansion board", 2, Kind.WORKER),
    ("dependency", 2, Kind.WORKER),
    ("CPU", 2, Kind.HOST),
    ("system memory", 2, Kind.HOST),
)
UNEXPECTED = sum(count for _, count, _ in CAUSES)

# Of the user's training, the same below any control plane.
START_S = 30.0  # MegaScale: process groups of more than 10,000 GPUs in less (arXiv 2402.15627)
# The paper: up to 4 GB for each GPU, from storage of 2 TB/s. As long to save, so Young's interval.
LOAD_S = SAVE_S = GPUS * 4e9 / 2e12


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """How long one takes for its parts of a recovery, in seconds, and who says so."""

    name: str
    find_worker_s: float
    find_host_s: float
    hang_limit_s: float
    assign_s: float
    processes_s: float
    source: str

    def recovery(self, kind: Kind) -> list[tuple[Part, float]]:
        """Return what has to pass before training is where it can load its checkpoint."""
        is_hang, is_host = kind is Kind.HANG, kind is Kind.HOST
        return [
            (Part.LIMIT, self.hang_limit_s if is_hang else 0.0),
            (Part.FIND, self.find_host_s if is_host else self.find_worker_s),
            (Part.ASSIGN, self.assign_s),
            (Part.PROCESSES, self.processes_s),
            (Part.START, START_S),
            (Part.LOAD, LOAD_S),
        ]


OTHERS = (
    ControlPlane(
        name="torchrun, c10d",
        find_worker_s=0.05,
        find_host_s=600.0,
        hang_limit_s=600.0,
        assign_s=10.0 * HOSTS / 4_000,
        processes_s=0.1,
        source="monitor interval 0.1 s; after a lost host the others wait in NCCL for its 10 min "
        "(pytorch issue 111646, PR 110901); ranks of 4,000 hosts in 10 s (pytorch PR 124982)",
    ),
    ControlPlane(
        name="NVRx, in-job",
        find_worker_s=0.15,
        find_host_s=15.0,
        hang_limit_s=60.0,
        assign_s=2.1,
        processes_s=60.0 - START_S - 2.1,
        source="monitor interval 0.3 s; heartbeats 5 s and stale check 10 s; its wrapper's soft "
        "timeout of 60 s for hangs; a restart cycle of about 1 min (deployment README), imports "
        "counted as the user's",
    ),
    ControlPlane(
        name="DLRover",
        find_worker_s=7.5,
        find_host_s=600.0,
        hang_limit_s=600.0,
        assign_s=12.5,
        processes_s=0.1,
        source="defaults: loops of agent and master 15 s, rendezvous asked every 5 s, a node is "
        "dead after 600 s, a hang after 10 min",
    ),
)


def at_hosts(by_size: dict[str, list[float | None]], hosts: int = HOSTS) -> float:
    """Return a time at this number of agents: between the medians beside it, else in proportion."""
    known = sorted(
        (int(size), statistics.median(happened))
        for size, values in by_size.items()
        if (happened := [value for value in values if value is not None])
    )
    below = [point for point in known if point[0] <= hosts]
    above = [point for point in known if point[0] >= hosts]
    if not below or not above:
        size, value = below[-1] if below else above[0]
        return value * max(1.0, hosts / size)
    (first, low), (second, high) = below[-1], above[0]
    share = 0.0 if first == second else (hosts - first) / (second - first)
    return low + share * (high - low)


def ours(results: dict[str, Any]) -> ControlPlane:
    """Return how long we take, as was measured."""
    figures, lease_s = results["figures"], 5.0
    restarts = figures["restart_alone"]
    largest = max(map(int, restarts))
    how = "as measured above" if largest >= HOSTS else f"in proportion to {largest:,} agents"
    return ControlPlane(
        name="drumbeat",
        find_worker_s=0.0,
        # Of the smallest run, for telling all is a part of assigning.
        find_host_s=max(lease_s, at_hosts(figures["loss"], min(map(int, figures["loss"])))),
        hang_limit_s=60.0,
        assign_s=at_hosts(restarts),
        processes_s=0.094,
        source=f"new ranks for {HOSTS:,} agents, {how}; a silent host is lost after the lease; "
        "94 ms from a killed worker to all new ones (high availability); a progress limit of 60 s",
    )


def checkpoint_interval_s(rate: float) -> float:
    """Return how often training saves: Young's optimum for the mean time between failures."""
    return math.sqrt(2 * SAVE_S * DAYS * DAY_S / (UNEXPECTED * rate))


def simulate(plane: ControlPlane, rate: float, seed: int) -> dict[Part, float]:
    """Return the share of all time that each part takes, in percent.

    A failure in the midst of a recovery begins it anew; the steps to repeat stay the same.
    """
    random, length_s = Random(seed), DAYS * DAY_S
    per_s, weights = UNEXPECTED * rate / length_s, [*accumulate(count for _, count, _ in CAUSES)]
    lost = dict.fromkeys(Part, 0.0)
    failure_at = random.expovariate(per_s)
    while (now := failure_at) < length_s:
        repeat_s = random.uniform(0.0, checkpoint_interval_s(rate))
        while now == failure_at < length_s:
            kind = random.choices(CAUSES, cum_weights=weights)[0][2]
            failure_at = min(now + random.expovariate(per_s), length_s)
            for part, part_s in [*plane.recovery(kind), (Part.REPEAT, repeat_s)]:
                until = min(now + part_s, failure_at)
                lost[part] += until - now
                now = until
                if now == failure_at:
                    break
    return {part: 100 * lost_s / length_s for part, lost_s in lost.items()}


@cache
def medians(plane: ControlPlane, rate: float, seeds: int = SEEDS) -> dict[Part, float]:
    """Return the median share of each part over so many seeds."""
    shares = [simulate(plane, rate, seed) for seed in range(seeds)]
    return {part: statistics.median(share[part] for share in shares) for part in Part}


def own(shares: dict[Part, float]) -> float:
    """Return the control plane's own share."""
    return sum(shares[part] for part in OWN)


def table(planes: Sequence[ControlPlane], seeds: int = SEEDS) -> list[str]:
    """Return the shares of all time as a table in Markdown."""
    heads = ["control plane", "failures", "own, of all time", "own, of lost time", "lost in all"]
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for rate in RATES:
        for plane in planes:
            shares = medians(plane, rate, seeds)
            total, mine = sum(shares.values()), own(shares)
            times = "as for Llama 3" if rate == 1 else f"{rate} times as many"
            cells = [plane.name, times, f"{mine:.3f} %", f"{100 * mine / total:.2f} %"]
            lines.append(f"| {' | '.join([*cells, f'{total:.2f} %'])} |")
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    measured = json.loads((ROOT / "docs" / "scale.json").read_text())
    print("\n".join(table([ours(measured), *OTHERS], parser.parse_args().seeds)))
