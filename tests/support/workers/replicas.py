"""Trains with torchft, as one worker of a replica group; prints a line for each step it commits.

Arguments: the step to end at, and how long a step computes, in seconds.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from typing import Any

import torch
from torchft import Manager, Optimizer, ProcessGroupGloo

STEPS, COMPUTE_S = int(sys.argv[1]), float(sys.argv[2])
GROUP = os.environ["REPLICA_GROUP_ID"]


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=20)),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=1,
        replica_id=f"group{GROUP}",
        hostname="127.0.0.1",
        timeout=timedelta(seconds=20),
    )
    managed = Optimizer(manager, optimizer)
    while (step := manager.current_step()) < STEPS:
        managed.zero_grad()
        time.sleep(COMPUTE_S)
        model(torch.ones(3, 4)).sum().backward()
        # torchft's wrapper for DDP raises AssertionError if a peer dies in an all-reduce of gloo.
        for work in [manager.allreduce(p.grad) for p in model.parameters() if p.grad is not None]:
            work.wait()
        managed.step()
        if manager.current_step() > step:
            world = manager.num_participants()
            line = (
                f"step {manager.current_step()} group {GROUP} of {world} at {time.monotonic():.3f}"
            )
            print(f"{line} pid {os.getpid()}", flush=True)
    manager.shutdown(wait=False)


main()
