"""Training by gloo that saves when it is told to, and goes on from what was saved.

Arguments: a directory, and after how many steps it is done. Each rank leaves a file for each
step it saved at, and a line for each step it made.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import worker_sdk


def main() -> None:
    """Train."""
    directory, steps = Path(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo")
    rank, round_id = dist.get_rank(), os.environ["DRUMBEAT_ROUND"]
    saved = [int(file.name.split("-")[2]) for file in directory.glob("saved-*")]
    step = max(saved, default=-1) + 1
    done = directory / f"done-{round_id}-{rank}"
    with done.open("a", buffering=1) as log:
        while step < steps:
            dist.all_reduce(torch.ones(4))
            time.sleep(0.005)
            worker_sdk.heartbeat(step)
            log.write(f"{step}\n")
            if worker_sdk.should_checkpoint(step):
                told = worker_sdk.notice()
                kind = told.kind if told else "none"
                (directory / f"saved-{rank}-{step}-{kind}").touch()
                worker_sdk.checkpointed(step)
                dist.barrier()
            step += 1
            if (directory / "stop").exists() and round_id != "0":
                break
    sys.stdout.flush()
    os._exit(0)  # without waiting for ranks that have ended before


main()
