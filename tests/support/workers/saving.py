"""Training by several ranks that saves when it is told to, and goes on from there.

``saving.py DIRECTORY [wrapped]``: ``wrapped`` begins anew in its process. A batch is that of the
step, whatever the number of ranks. Each rank leaves a line for each step that it begins, and a
file for each one it saves at; rank 0 tells in ``result`` what it came to, and what training
without any change comes to. Gradients are averaged and taken here: DistributedDataParallel and
optimizers of torch take longer to load than torch.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import worker_sdk
from worker_sdk import inprocess

DIRECTORY = Path(sys.argv[1])
ROUND = int(os.environ["DRUMBEAT_ROUND"])
STEPS = 600
BATCH = 12
"""Rows of a step, by all ranks together: of up to three each has the same number."""
PAUSE_S = 0.02
"""Of a step, until there is a file ``hurry``: there is time for changes."""


def new_model() -> tuple[nn.Module, list[torch.Tensor]]:
    """Return a model, and the momentum of each of its parameters."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    return model, [torch.zeros_like(parameter) for parameter in model.parameters()]


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    given = torch.randn(
        BATCH, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(step)
    )
    return given, torch.sin(given).sum(dim=1, keepdim=True)


def take_step(
    model: nn.Module, momenta: list[torch.Tensor], step: int, rank: int, size: int
) -> torch.Tensor:
    given, wanted = (rows[rank::size] for rows in batch(step))
    model.zero_grad()
    loss = nn.functional.mse_loss(model(given), wanted)
    loss.backward()
    with torch.no_grad():
        for parameter, momentum in zip(model.parameters(), momenta, strict=True):
            if size > 1:
                dist.all_reduce(parameter.grad)
            momentum.mul_(0.9).add_(parameter.grad, alpha=1 / size)
            parameter.sub_(momentum, alpha=0.05)
    return loss.detach()


def save(model: nn.Module, momenta: list[torch.Tensor], step: int) -> None:
    rank, told = dist.get_rank(), worker_sdk.notice()
    if rank == 0:
        state = {"model": model.state_dict(), "momenta": momenta, "step": step}
        torch.save(state, DIRECTORY / "checkpoint.new")
        (DIRECTORY / "checkpoint.new").replace(DIRECTORY / "checkpoint.pt")
    (DIRECTORY / f"saved-{rank}-{step}-{told.kind if told else 'none'}").touch()


def train(iteration: int = 0) -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    model, momenta = new_model()
    first, path = 0, DIRECTORY / "checkpoint.pt"
    if path.exists():
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        momenta, first = saved["momenta"], saved["step"] + 1
    total = torch.zeros(())
    with (DIRECTORY / f"steps-{ROUND}-{iteration}-{rank}").open("a", buffering=1) as log:
        for step in range(first, STEPS):
            log.write(f"{step}\n")
            total = take_step(model, momenta, step, rank, size)
            worker_sdk.heartbeat(step)
            if not (DIRECTORY / "hurry").exists():
                time.sleep(PAUSE_S)
            if worker_sdk.should_checkpoint(step):
                save(model, momenta, step)
                worker_sdk.checkpointed(step, wait=True)
    dist.all_reduce(total)
    if rank == 0:
        result = {"loss": float(total) / size, "undisturbed": undisturbed()}
        (DIRECTORY / "result").write_text(json.dumps(result))
    dist.barrier()


def undisturbed() -> float:
    """Return the last loss of one rank that nothing ever happens to."""
    model, momenta = new_model()
    losses = [take_step(model, momenta, step, 0, 1) for step in range(STEPS)]
    return float(losses[-1])


@inprocess.Wrapper(soft_timeout=30, hard_timeout=60)
def train_wrapped(call: inprocess.CallWrapper) -> None:
    train(call.iteration)


torch.set_num_threads(1)
if sys.argv[2:] == ["wrapped"]:
    train_wrapped()
else:
    train()
sys.stdout.flush()
os._exit(0)  # without waiting for ranks that have ended before
