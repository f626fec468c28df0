"""A worker that trains for the page: ``shown.py DIRECTORY MODE``.

``even`` takes steps for ever, saves when it is told to, and fails on rank 1 once there is a file
``RUN-fails-ROUND``. ``steady`` does the same with the last rank at half the pace of the others,
``hostile`` with texts that are markup and escapes of terminals, and fails first. ``failing`` ends
in a failure that makes another one.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import worker_sdk

DIRECTORY, MODE = Path(sys.argv[1]), sys.argv[2]
RANK, ROUND = int(os.environ["RANK"]), int(os.environ["DRUMBEAT_ROUND"])
RUN = os.environ["DRUMBEAT_RUN_ID"]
STEP_S = 0.05
SAVED_EVERY = 60
MARKUP = "<img src=x onerror=boom()><script>boom()</script><b>bold</b>&amp;"
ESCAPES = "\x1b[31mred\x1b[2J\x1b]0;title\x07\u202eback"


@worker_sdk.record
def steady(scope: str, word: str) -> None:
    is_slow = MODE == "steady" and int(os.environ["WORLD_SIZE"]) - 1 == RANK
    checkpoint = DIRECTORY / f"{RUN}-{RANK}"
    first = int(checkpoint.read_text()) if checkpoint.exists() else 0
    for step in range(first, 1_000_000):
        worker_sdk.heartbeat(step)
        if step % SAVED_EVERY == 0:
            checkpoint.write_text(f"{step}")
        if step % 20 == 0:
            print(f"rank {RANK} {word} {step}", flush=True)
        if worker_sdk.should_checkpoint(step):
            print(f"rank {RANK} saves at {step}", flush=True)
            worker_sdk.checkpointed(step, wait=True)
        with worker_sdk.expires(after=600, scope=scope):
            time.sleep(STEP_S * (1 + is_slow))
        if RANK == 1 and (DIRECTORY / f"{RUN}-fails-{ROUND}").exists():
            raise RuntimeError(f"loss is NaN in round {ROUND}")


@worker_sdk.record
def hostile() -> None:
    word = f"{MARKUP}{ESCAPES}"
    print(word, flush=True)
    if ROUND == 0:
        raise RuntimeError(word)
    steady(MARKUP, word)


@worker_sdk.record
def failing() -> None:
    worker_sdk.heartbeat(7)
    pipe = DIRECTORY / f"{RUN}-fails"
    with suppress(FileExistsError):
        os.mkfifo(pipe)
    if RANK == 0:
        os.open(pipe, os.O_WRONLY)  # it stays open until this process has ended
        print("ERROR the data ends here", file=sys.stderr, flush=True)
        raise ValueError("batch 7 has no labels")
    pipe.read_bytes()
    raise ConnectionError("rank 0 has gone away")


match MODE:
    case "hostile":
        hostile()
    case "failing":
        failing()
    case _:
        steady("forward and backward", "trains at step")
