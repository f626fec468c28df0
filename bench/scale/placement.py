"""How close are ranks by topology after many losses, and what does their order cost?

Pure code only, in time of the processor. Of 1,000 hosts in 64 racks of unequal size 200 are lost
at random, one after the other, and replaced by a host of a rack drawn at random. Each round is
ordered from the seats of the one before it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from itertools import pairwise
from random import Random

from bench.figures import OURS, OneOfEach, one_of_each
from drumbeat.coordinator.core.model import AgentIdentity
from drumbeat.coordinator.core.phases.ranks import assign_seats, next_order
from tests.support.world import an_agent

HOSTS, RACKS, LOSSES = 1_000, 64, 200


def host(name: str, rack: int) -> AgentIdentity:
    """Return an agent of eight workers in a rack."""
    return an_agent(name, local_world_size=8, placement=(f"rack{rack}",))


def figures(seed: int = 1) -> OneOfEach:
    """Return the share of neighbours in one rack, the best share there can be, and milliseconds."""
    random = Random(seed)
    agents = [host(f"node-{n}", random.randrange(RACKS)) for n in range(HOSTS)]
    seats = assign_seats(next_order(agents, {}, agents_max=HOSTS))
    took_ms = []
    for loss in range(LOSSES):
        present = [seat.agent for seat in seats.values()]
        present.pop(random.randrange(HOSTS))
        present.append(host(f"new-{loss}", random.randrange(RACKS)))
        began = time.process_time()
        order = next_order(present, seats, agents_max=HOSTS)
        took_ms.append((time.process_time() - began) * 1e3)
        seats = assign_seats(order)
    racks = [seat.agent.placement for seat in seats.values()]
    together = sum(one == other for one, other in pairwise(racks))
    return {
        "neighbours_percent": 100 * together / (HOSTS - 1),
        "neighbours_bound_percent": 100 * (HOSTS - len(set(racks))) / (HOSTS - 1),
        "median_ms": statistics.median(took_ms),
        "longest_ms": max(took_ms),
    }


OF = f"{HOSTS:,} hosts in {RACKS} racks, {LOSSES} losses"
QUESTIONS = one_of_each(lambda _side: figures()).questions(
    "placement",
    (
        ("neighbours_percent", "%", f"{OF}: neighbouring ranks in one rack"),
        ("neighbours_bound_percent", "%", f"{OF}: the most that there can be"),
        ("median_ms", "ms", f"{OF}: ordering one round, median"),
    ),
    OURS,
)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of racks and losses")
    for name, value in figures(parser.parse_args().seed).items():
        print(f"{name:25} {value:7.2f}")
