"""A worker that owns its board without the SDK, and then hangs in one of several ways.

One that is only told of uses the SDK: it shows its stacks without a signal.

Arguments: how, and the limit of its timer in seconds.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from pathlib import Path

import worker_sdk
from tests.support.board_writer import BoardWriter
from worker_sdk.board import layout
from worker_sdk.context import WORKER_DIR

STACK_SIGNAL = signal.SIGRTMAX - 1


def all_reduce() -> None:
    """Stand in a line that the stacks can be searched for."""
    time.sleep(1000)


def main(how: str, limit_s: float) -> None:
    """Open a timer, and never release it."""
    if how == "told":
        worker_sdk.heartbeat(step=41)
        with worker_sdk.expires(after=limit_s, scope="all-reduce", signal=0):
            time.sleep(limit_s + 0.5)
        return
    board = BoardWriter(Path(os.environ[WORKER_DIR]))
    stacks = os.open(board.directory / layout.STACKS_FILE, os.O_WRONLY | os.O_NONBLOCK)
    faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=True, chain=False)
    if how == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if how == "polite":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    now = time.monotonic_ns()
    board.claim(STACK_SIGNAL=STACK_SIGNAL, HEARTBEATS=1, STEP=41, HEARTBEAT_AT=now)
    number = signal.SIGUSR1 if how == "named" else layout.SIGNAL_DEFAULT
    board.open_slot(0, "all-reduce", limit_s, signal=number)
    board.kick()
    if how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    all_reduce()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
