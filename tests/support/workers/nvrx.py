"""A worker that nvidia-resiliency-ext restarts in process, with faults where a plan has them.

``python -m tests.support.workers.nvrx JSON``: ``{"RANK:ITERATION": FAULT}``, ranks as they were at
the start of round 0. In an iteration with a fault, which may be another process's, all others go on
until they are interrupted. Each step of note is a line on standard output.
"""

import json
import logging
import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from nvidia_resiliency_ext import inprocess

import drumbeat.nvrx

PLAN: dict[str, str] = json.loads(sys.argv[1])
FIRST_RANK, ROUND = int(os.environ["RANK"]), int(os.environ["DRUMBEAT_ROUND"])
SOON = timedelta(milliseconds=100)


def show(what: str, **more: object) -> None:
    words = " ".join(f"{name}={value}" for name, value in more.items())
    os.write(1, f"r{ROUND} w{FIRST_RANK} {what} {words}\n".encode())  # whole lines


@inprocess.Wrapper(  # type: ignore[untyped-decorator] # it is not there for mypy
    store_factory=drumbeat.nvrx.Store,
    monitor_thread_interval=SOON,
    monitor_process_interval=SOON,
    progress_watchdog_interval=SOON,
    heartbeat_interval=SOON,
    heartbeat_timeout=timedelta(seconds=5),
    last_call_wait=SOON,
)
def train(call: inprocess.CallWrapper = None) -> float:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.PrefixStore(f"group {call.iteration}", drumbeat.nvrx.Store())
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    ones = torch.ones(1)
    dist.all_reduce(ones)
    show("reduced", iteration=call.iteration, pid=os.getpid(), sum=int(ones))
    faults = {key: fault for key, fault in PLAN.items() if key.endswith(f":{call.iteration}")}
    if faults and ROUND == 0:
        match faults.get(f"{FIRST_RANK}:{call.iteration}"):
            case "raise":
                raise ValueError("told to raise")
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        while True:
            time.sleep(0.01)
    dist.barrier()
    dist.destroy_process_group()
    return float(ones)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    show("returned", value=int(train()))
