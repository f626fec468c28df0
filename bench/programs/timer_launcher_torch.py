"""Torch's timers: a ``FileTimerServer`` and workers with a ``FileTimerClient`` each.

python -m bench.programs.timer_launcher_torch MODE DIRECTORY SECONDS PAIRS_PER_S WORKERS

Every process is a fork of this one, which saves importing torch in each. Workers
leave their figures in files, as ours do; ``server.json`` is about the server.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import signal
import sys
import threading
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
from torch.distributed.elastic import timer

from bench.cpu import shares
from bench.host import timer_loads

MAX_INTERVAL_S = 0.1  # what torchrun gives its server
FORK = multiprocessing.get_context("fork")


def serve(path: str, is_ready: threading.Event) -> None:
    # It sends itself the signal it sent a worker.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    server = timer.FileTimerServer(path, run_id="bench", max_interval=MAX_INTERVAL_S)
    server.start()
    is_ready.set()
    threading.Event().wait()


def work(mode: str, rank: int, path: str, barrier: threading.Barrier) -> None:
    seconds, rate = float(sys.argv[3]), float(sys.argv[4])
    default = timer.FileTimerClient(path)
    named = timer.FileTimerClient(path, signal=signal.SIGUSR1)

    def expires(after: float, scope: str, signum: int | None) -> AbstractContextManager[object]:
        client = default if signum is None else named
        found: AbstractContextManager[object] = timer.expires(after, scope, client)
        return found

    barrier.wait()
    figures: object
    match mode:
        case "cost":
            figures = timer_loads.cost(expires)
        case "sustained":
            figures = timer_loads.sustained(expires, rate, seconds)
        case "expiry":
            # The server forgets all timers of a worker with the first that expires.
            figures = timer_loads.expiry(expires, rank, seconds, others_stay=False)
        case _:
            figures = timer_loads.load(expires, None, seconds + 1)
    Path(sys.argv[2], f"{rank}.json").write_text(json.dumps(figures))


def main() -> int:
    mode, directory, seconds, workers = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[5])
    path = str(Path(directory, "fifo"))
    is_ready, barrier = FORK.Event(), FORK.Barrier(workers + 1)
    server = FORK.Process(target=serve, args=(path, is_ready), daemon=True)
    server.start()
    is_ready.wait()
    team = [
        FORK.Process(target=work, args=(mode, rank, path, barrier), daemon=True)
        for rank in range(workers)
    ]
    for process in team:
        process.start()
    barrier.wait()
    figures = {}
    if mode == "load":
        [percent] = asyncio.run(shares(float(seconds), psutil.Process(server.pid)))
        figures["cpu_percent"] = percent
    for process in team:
        process.join()
    Path(directory, "server.json").write_text(
        json.dumps({**figures, "is_alive": server.is_alive()})
    )
    server.kill()
    server.join()
    return 1 if any(process.exitcode for process in team) else 0


if __name__ == "__main__":
    sys.exit(main())
