"""A worker that hangs in the way it is told, or only looks like it.

``python -m tests.support.workers.ways_to_hang WAY [LIMIT_S]``. Every way that hangs has a
function of its own, so that a test finds the place in the stacks by its name.
"""

from __future__ import annotations

import atexit
import collections
import itertools
import sys
import threading
import time

import worker_sdk

LONG_S = 600.0
"""Long enough to be a hang, and to end by itself if nobody is there to end it."""


def hold_the_lock_of_the_interpreter(limit_s: float) -> None:
    """Enter C with the GIL held as the very next thing after the timer was acquired."""
    with worker_sdk.expires(after=limit_s, scope="the step"):
        collections.deque(itertools.repeat(None), maxlen=0)


def hold_the_lock_without_a_timer(_limit_s: float) -> None:
    worker_sdk.heartbeat(step=1)
    time.sleep(0.3)  # time for a sign of life
    collections.deque(itertools.repeat(None), maxlen=0)


def deadlock_in_scope(limit_s: float) -> None:
    lock = threading.Lock()
    lock.acquire()
    with worker_sdk.expires(after=limit_s, scope="the step"):
        lock.acquire()


def stay_longer_than_ever(_limit_s: float) -> None:
    """Let the run learn how long the section takes, then stay in it."""
    for _ in range(5):
        with worker_sdk.section("save", timeout="auto"):
            time.sleep(0.05)
    time.sleep(3)  # more than a heartbeat of the agent: what is learned comes back with it
    with worker_sdk.section("save", timeout="auto"):
        time.sleep(LONG_S)


def stop_making_progress(_limit_s: float) -> None:
    for step in range(3):
        worker_sdk.heartbeat(step=step)
    time.sleep(LONG_S)


def never_begin(_limit_s: float) -> None:
    time.sleep(LONG_S)


def hang_at_exit(_limit_s: float) -> None:
    worker_sdk.heartbeat(step=1)
    atexit.register(wait_at_exit)


def wait_at_exit() -> None:
    time.sleep(LONG_S)


def all_reduce_without_a_peer(limit_s: float) -> None:
    """Rank 1 leaves without a word and keeps its connections; rank 0 waits for it."""
    import datetime as dt

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=dt.timedelta(seconds=LONG_S))
    dist.barrier()
    if dist.get_rank() == 1:
        time.sleep(LONG_S)
    with worker_sdk.expires(after=limit_s, scope="all-reduce"):
        wait_for_the_peer(torch.ones(1))


def wait_for_the_peer(tensor: object) -> None:
    import torch.distributed as dist

    dist.all_reduce(tensor)


# Slow, but healthy. Each prints "healthy" at its end.


def long_import(limit_s: float) -> None:
    """Start-up takes longer than progress may."""
    time.sleep(2 * limit_s)
    worker_sdk.heartbeat(step=0)


def long_section(limit_s: float) -> None:
    """A checkpoint takes longer than the step around it, and than progress may."""
    worker_sdk.heartbeat(step=0)
    with (
        worker_sdk.expires(after=limit_s, scope="the step"),
        worker_sdk.section("checkpoint", timeout=20 * limit_s),
    ):
        time.sleep(2 * limit_s)
    worker_sdk.heartbeat(step=1)


def many_short_steps(limit_s: float) -> None:
    """Together they take longer than any may alone."""
    for step in range(60):
        with worker_sdk.expires(after=limit_s, scope="the step"):
            time.sleep(limit_s / 20)
        worker_sdk.heartbeat(step=step)
        if step == 50:
            print("most steps done", flush=True)


def one_long_step(limit_s: float) -> None:
    """As long as the limit would allow if nobody held it up."""
    with worker_sdk.expires(after=limit_s, scope="the step"):
        time.sleep(0.9 * limit_s)


HEALTHY = {"long_import", "long_section", "many_short_steps", "one_long_step"}


def main() -> None:
    way, limit_s = sys.argv[1], float(sys.argv[2])
    print(f"began {way}", flush=True)
    globals()[way](limit_s)
    if way in HEALTHY:
        print("healthy", flush=True)


if __name__ == "__main__":
    main()
