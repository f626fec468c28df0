"""A worker that uses our timers and leaves its figures in a file.

python -m bench.workers.timers MODE DIRECTORY SECONDS PAIRS_PER_S HOST PORT
"""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import worker_sdk
from bench.host import timer_loads


def expires(after: float, scope: str, signum: int | None) -> AbstractContextManager[object]:
    return worker_sdk.expires(after=after, scope=scope, signal=signum)


def heartbeat(step: int) -> None:
    worker_sdk.heartbeat(step=step)


def arrive(host: str, port: str) -> None:
    """Tell the benchmark that this worker is there, as ``sleeps`` does."""
    ranks = {"rank": "RANK", "world_size": "WORLD_SIZE"}
    facts = {"pid": os.getpid(), **{key: int(os.environ[name]) for key, name in ranks.items()}}
    with socket.create_connection((host, int(port))) as benchmark:
        benchmark.sendall(json.dumps(facts).encode() + b"\n")


def main() -> None:
    mode, directory, seconds, rate = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]
    rank = int(os.environ["RANK"])
    heartbeat(0)  # the first call maps the board
    arrive(*sys.argv[5:7])
    figures: object
    match mode:
        case "cost":
            figures = timer_loads.cost(expires)
        case "heartbeat":
            figures = timer_loads.call_cost(heartbeat)
        case "sustained":
            figures = timer_loads.sustained(expires, float(rate), seconds)
        case "expiry":
            figures = timer_loads.expiry(expires, rank, seconds, others_stay=True)
        case _:
            figures = timer_loads.load(expires, heartbeat, seconds)
    Path(directory, f"{rank}.json").write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
