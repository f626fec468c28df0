"""A worker in a storm of faults: ``python -m tests.support.workers.storming DIR SEED FAULTS``.

In each iteration a random one fails in a random way, by a generator that all share: it is
seeded with round and iteration. Each fault takes a number, a file in DIR; once all numbers are
taken the function returns what it computed, the same on all ranks.
"""

from __future__ import annotations

import collections
import itertools
import os
import random
import signal
import sys
import time
from pathlib import Path

from worker_sdk import inprocess

DIRECTORY, SEED, FAULTS = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
ROUND = int(os.environ["DRUMBEAT_ROUND"])
# Those that cost a rank are rarer, or nobody would be left.
KINDS = ("raise", "raise", "raise", "sleep", "exit", "kill", "stop", "hold")


def taken() -> int:
    return len(os.listdir(DIRECTORY))  # noqa: PTH208 - asked all the while by all


def take_number(kind: str) -> bool:
    """Claim the next fault; ``False`` if there were enough."""
    for number in range(FAULTS):
        try:
            (DIRECTORY / f"fault-{number}").open("x").write(kind)
        except FileExistsError:
            continue
        return True
    return False


def fail(kind: str) -> None:
    match kind:
        case "raise":
            raise ValueError("a storm")
        case "sleep":
            time.sleep(600)
        case "exit":
            raise SystemExit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "hold":
            collections.deque(itertools.repeat(None), maxlen=0)


@inprocess.Wrapper(
    soft_timeout=1.5,
    hard_timeout=2,
    heartbeat_timeout=4,
    barrier_timeout=20,
    termination_grace_time=1,
    last_call_wait=0.2,
    abort=None,
    min_world_size=4,
)
def train(call: inprocess.CallWrapper) -> int:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    chance = random.Random(f"{SEED} {ROUND} {call.iteration}")
    victims = chance.sample(range(world_size), chance.choice((1, 1, 1, 2)))
    kinds = {victim: chance.choice(KINDS) for victim in victims}
    delay_s = chance.uniform(0, 0.1)
    end = time.monotonic() + delay_s
    while taken() < FAULTS:
        call.ping()
        with call.atomic():
            time.sleep(0.005)
        if rank in kinds and time.monotonic() >= end and take_number(kinds[rank]):
            fail(kinds[rank])
    return sum(range(1000))


if __name__ == "__main__":
    os.write(1, f"returned {train()}\n".encode())
