"""A worker of a round: ``worker.py DIRECTORY MODE``. Says when it lives, and does what it is told.

Modes: ``plain``; ``deaf`` ignores SIGTERM, ``half-deaf`` on every other host; ``wrapped`` starts
again in its process; ``torch`` sums over all ranks in each step. It writes to a file of its own in
``DIRECTORY/records``, with instants of the monotonic clock, so that what it says depends on none of
the programs under test: one JSON line when it starts, ``A INSTANT STEP`` for each step,
``E INSTANT`` before a good end. It ends well once there is ``DIRECTORY/finish``. SIGUSR1 has it
fail, SIGUSR2 take memory until it is killed.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import worker_sdk

if TYPE_CHECKING:
    from collections.abc import Callable

DIRECTORY, MODE = Path(sys.argv[1]), sys.argv[2]
STEP_S = 0.02
ENVIRONMENT = os.environ
FINISH = str(DIRECTORY / "finish")
PROGRESS = DIRECTORY / "progress"

_wishes: list[int] = []
_kept: list[bytearray] = []


class Record:
    """The file of this process."""

    def __init__(self) -> None:
        path = DIRECTORY / "records" / f"{os.getpid()}-{time.monotonic_ns()}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def start(self, iteration: int) -> None:
        """Say which place this process has from now on."""
        place = {
            "at": time.monotonic(),
            "pid": os.getpid(),
            "host": os.uname().nodename,
            "run_id": ENVIRONMENT["DRUMBEAT_RUN_ID"],
            "round_id": int(ENVIRONMENT["DRUMBEAT_ROUND"]),
            "iteration": iteration,
            "rank": int(ENVIRONMENT["RANK"]),
            "world_size": int(ENVIRONMENT["WORLD_SIZE"]),
            "restarts": int(ENVIRONMENT["TORCHELASTIC_RESTART_COUNT"]),
            "master": f"{ENVIRONMENT['MASTER_ADDR']}:{ENVIRONMENT['MASTER_PORT']}",
        }
        self._say(json.dumps(place))

    def alive(self, step: int) -> None:
        """Say that it lives."""
        self._say(f"A {time.monotonic():.6f} {step}")

    def end(self) -> None:
        """Say that it ends well."""
        self._say(f"E {time.monotonic():.6f}")

    def _say(self, line: str) -> None:
        os.write(self._file, f"{line}\n".encode())


def step_saved() -> int:
    """Return the step that was saved last."""
    with suppress(OSError, ValueError):
        return int(PROGRESS.read_text())
    return 0


def save(step: int) -> None:
    """Keep a step; a process of an older round may do so at the same time."""
    draft = PROGRESS.with_name(f"progress-{os.getpid()}")
    draft.write_text(str(step))
    draft.rename(PROGRESS)


def obey() -> None:
    """Do what a signal asked for, if one came."""
    if not _wishes:
        return
    if _wishes.pop() == signal.SIGUSR1:
        raise RuntimeError("told to fail")
    while True:
        _kept.append(bytearray(os.urandom(1 << 20) * 8))


def is_enough() -> bool:
    """Whether this worker may end well."""
    return os.path.exists(FINISH)  # noqa: PTH110 - often


def train(
    record: Record, iteration: int = 0, call: Any = None, is_over: Callable[[], bool] = is_enough
) -> int:
    """Take steps until there are enough."""
    record.start(iteration)
    step = step_saved()
    while not is_over():
        step += 1
        record.alive(step)
        obey()
        if ENVIRONMENT["RANK"] == "0":
            save(step)
        if call is not None:
            call.ping()
        worker_sdk.heartbeat(step=step)
        select.select([], [], [], STEP_S)  # libfaketime has time.sleep fail
    return step


def train_wrapped(record: Record) -> None:
    """Take steps in a function that starts again."""
    from worker_sdk import inprocess

    @inprocess.Wrapper(
        soft_timeout=5, hard_timeout=8, heartbeat_timeout=10, barrier_timeout=20, abort=None
    )
    def function(call: inprocess.CallWrapper) -> int:
        return train(record, call.iteration, call)

    function()


def train_with_torch(record: Record) -> None:
    """Take steps in which all ranks meet."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    ENVIRONMENT["GLOO_SOCKET_IFNAME"] = "wire"
    dist.init_process_group("gloo")

    def is_over() -> bool:
        seen = torch.tensor(float(is_enough()))
        dist.all_reduce(seen)
        return bool(seen.item())

    train(record, is_over=is_over)
    # Without it the interpreter's end may abort the process: a thread of gloo's still runs.
    dist.destroy_process_group()


def main() -> None:
    """Do it."""
    for signum in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, lambda signum, _frame: _wishes.append(signum))
    if MODE == "deaf" or (MODE == "half-deaf" and int(os.uname().nodename[1:]) % 2 == 0):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    record = Record()
    if MODE == "wrapped":
        train_wrapped(record)
    elif MODE == "torch":
        train_with_torch(record)
    else:
        train(record)
    record.end()


if __name__ == "__main__":
    main()
