"""Measure the links between hosts before training, and leave out hosts that are slow.

A command for ``agent join --preflight``: all-reduces on the CPU between pairs of hosts, one pair
after the other. A host is slow if even its best pair is below the threshold, so it takes three
hosts to tell which one is. Rank 0 names them on its last line, and they take no part in the run.

    agent join ... --preflight "python examples/preflight_bandwidth.py --min-mb-per-s 200" train.py
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist

PARTNERS_MAX = 4  # each host is measured with so many that follow it: all pairs take too long


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=16, help="size of what is reduced")
    parser.add_argument("--repeats", type=int, default=3, help="of which the fastest counts")
    parser.add_argument("--min-mb-per-s", type=float, default=100.0, help="least that is good")
    parser.add_argument("--slow-rank", type=int, help="play a slow link at this rank")
    return parser.parse_args()


def bandwidth(group: dist.ProcessGroup, data: torch.Tensor, repeats: int, delay_s: float) -> float:
    """Return the best megabytes per second of an all-reduce in this pair."""
    best = 0.0
    for _ in range(repeats):
        dist.barrier(group)
        began = time.monotonic()
        time.sleep(delay_s)
        dist.all_reduce(data, group=group)
        best = max(best, data.nbytes / 1e6 / (time.monotonic() - began))
    return best


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    hosts = range(0, size, int(os.environ["LOCAL_WORLD_SIZE"]))  # the first rank of each
    data = torch.ones(arguments.megabytes * 1_000_000 // 4)
    is_slow = rank == arguments.slow_rank
    delay_s = 2 * data.nbytes / 1e6 / arguments.min_mb_per_s if is_slow else 0.0
    best = 0.0
    for distance in range(1, min(PARTNERS_MAX, len(hosts) - 1) + 1):
        for number, first in enumerate(hosts):
            second = hosts[(number + distance) % len(hosts)]
            group = dist.new_group([first, second])
            if rank in {first, second}:
                best = max(best, bandwidth(group, data, arguments.repeats, delay_s))
    everyone = [0.0] * size
    dist.all_gather_object(everyone, best)
    dist.destroy_process_group()
    if rank == 0:
        least = arguments.min_mb_per_s
        slow = [str(each) for each in hosts if everyone[each] < least] if len(hosts) > 1 else []
        for each in hosts:
            print(f"rank {each}: {everyone[each]:.0f} MB/s with its best partner", flush=True)
        if slow:
            print(f"drumbeat: exclude {','.join(slow)}: below {least:g} MB/s", flush=True)


if __name__ == "__main__":
    main()
