"""A rank whose function starts again in process, the same on every side.

python -m bench.workers.inprocess SIDE MODE DIRECTORY COUNT: ours or NVRx's wrapper, what to
do, where to leave what was noted, how often. A note is a line: name, iteration, instant
(``CLOCK_MONOTONIC``, which all processes of a host share) and, as JSON, more.

No annotation may be a string here: NVRx would not know its parameter.
"""

import json
import os
import signal
import statistics
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.utils.data

SIDE, MODE, DIRECTORY, COUNT = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
FIRST_RANK = int(os.environ["RANK"])
FAILS_LAST_OF = 4
"""The rank that fails, of those that are active at the start, is the last: it hosts nothing."""
REST_S = 0.3
"""Before a fault, so that all are in the middle of something, and at rest."""
PINGS = 20_000
LOADERS = 2
"""Worker processes of the rank that loads data."""
NOTES = os.open(
    Path(DIRECTORY, f"notes-{FIRST_RANK}"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
)

if SIDE == "ours":
    from worker_sdk import inprocess
else:
    # From an environment of its own.
    from nvidia_resiliency_ext import inprocess  # type: ignore[no-redef]


def note(name: str, iteration: int, more: object = None) -> None:
    line = f"{name} {iteration} {time.monotonic()!r} {json.dumps(more)}\n"
    os.write(NOTES, line.encode())


def options() -> dict[str, Any]:
    """Return what the wrapper of this side is given."""
    if SIDE == "ours":
        if MODE == "kill":
            most = inprocess.MaxActiveWorldSize(FAILS_LAST_OF)
            return {"rank_assignment": inprocess.Compose(most, inprocess.ShiftRanks())}
        return {}
    # Its own store is not at the port of the function's.
    port = int(os.environ["MASTER_PORT"]) + 1
    found: dict[str, Any] = {"store_kwargs": {"port": port}}
    if SIDE == "tuned":
        names = ("monitor_thread", "monitor_process", "heartbeat", "progress_watchdog")
        found |= {f"{name}_interval": timedelta(seconds=0.1) for name in names}
        found["last_call_wait"] = timedelta(0)
    return found


STORES: list[Any] = []
"""Outside of the iterations: a port that closed is not free at once."""


def begin_group(iteration: int) -> None:
    """Make the process group as the documentation of this side tells."""
    if SIDE == "ours":
        dist.init_process_group("gloo")
        return
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if not STORES:
        where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        STORES.append(dist.TCPStore(*where, size, is_master=rank == 0, multi_tenant=True))
    store = dist.PrefixStore(str(iteration), STORES[0])
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)


def reduce_once() -> None:
    ones = torch.ones(1000)
    dist.all_reduce(ones)
    if ones[0] != dist.get_world_size():
        raise AssertionError(f"{ones[0]} of {dist.get_world_size()}")


def circumstances() -> dict[str, int]:
    """Return what this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "rank": FIRST_RANK,
        "rss": pages * os.sysconf("SC_PAGE_SIZE"),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "fds": len(list(Path("/proc/self/fd").iterdir())),
    }


def time_pings(call: Any) -> dict[str, float]:
    """Return percentiles of the caller's time, in microseconds."""

    def ping() -> None:
        call.ping()

    def atomic_ping() -> None:
        with call.atomic():
            call.ping()

    figures: dict[str, float] = {}
    for name, step in (("ping", ping), ("atomic", atomic_ping)):
        samples = []
        for number in range(PINGS):
            begun = time.perf_counter_ns()
            step()
            samples.append((time.perf_counter_ns() - begun) / 1e3)
            if number % 100 == 99:
                time.sleep(0.001)  # no step is nothing but pings
        cuts = statistics.quantiles(samples, n=100)
        figures |= {f"{name}_p50": cuts[49], f"{name}_p99": cuts[98]}
    return figures


def go_on(call: Any, *, until_interrupted: bool = True) -> None:
    """Be in the middle of training, between two collectives."""
    while until_interrupted:
        call.ping()
        time.sleep(0.001)


class Data:
    """Batches that cost next to nothing, so that most of the time goes into handing them over."""

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, index: int) -> Any:
        return torch.full((64, 64), float(index))


def load(call: Any) -> None:
    """Iterate over a loader with worker processes until interrupted."""
    for _ in torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=LOADERS):
        call.ping()


def fail(iteration: int) -> None:
    if MODE == "kill":
        note("fault", iteration)
        os.kill(os.getpid(), signal.SIGKILL)
    note("fault", iteration)
    raise RuntimeError("told to fail")


# NVRx wants a default.
def train(call: inprocess.CallWrapper = None) -> None:  # type: ignore[assignment]
    iteration = call.iteration
    note("enter", iteration, circumstances() if MODE == "memory" else None)
    begin_group(iteration)
    reduce_once()
    note("ready", iteration)
    rank, is_last = int(os.environ["RANK"]), iteration == COUNT
    if is_last:
        if MODE == "ping" and rank == 0:
            note("pings", iteration, time_pings(call))
        reduce_once()
        dist.destroy_process_group()
        return
    if rank == min(FAILS_LAST_OF, dist.get_world_size()) - 1:
        time.sleep(REST_S if MODE != "memory" else 0)
        fail(iteration)
    if MODE == "collective":
        reduce_once()
    if MODE == "loader" and rank == 0:
        load(call)
    go_on(call)


if __name__ == "__main__":
    torch.set_num_threads(1)
    inprocess.Wrapper(**options())(train)()
    note("end", COUNT)
