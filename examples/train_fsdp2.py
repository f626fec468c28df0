"""Train on handwritten digits with FSDP2 and sharded checkpoints.

Checkpoints are written in the background. They can be loaded with another number of workers.

    agent join --nproc-per-node 2 --max-restarts 3 examples/train_fsdp2.py
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import fully_shard

import worker_sdk

BATCH = 256  # of all ranks together


class TrainState(Stateful):
    """Everything a checkpoint holds."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer, self.step = model, optimizer, 0

    def state_dict(self) -> dict[str, object]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, saved: dict) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=saved["model"],
            optim_state_dict=saved["optimizer"],
        )
        self.step = saved["step"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("checkpoints-fsdp2"))
    arguments = parser.parse_args()

    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group()
    # A group of its own: the thread that saves must not share the collectives of training.
    saving_group = dist.new_group(backend="gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    digits = load_digits()
    pictures = torch.tensor(digits.data, dtype=torch.float32, device=device) / 16
    labels = torch.tensor(digits.target, device=device)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    state = TrainState(model, torch.optim.AdamW(model.parameters(), lr=1e-3))

    # A checkpoint that a killed worker left unfinished has no ".metadata".
    complete = sorted(arguments.checkpoint_dir.glob("*/.metadata"))
    if complete:
        dcp.load({"state": state}, checkpoint_id=complete[-1].parent)
        if rank == 0:
            print(f"resumed from {complete[-1].parent.name}", flush=True)

    saving = None
    for step in range(state.step + 1, arguments.steps + 1):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(step))
        batch = order[:BATCH][rank::world_size].to(device)
        loss = nn.functional.cross_entropy(model(pictures[batch]), labels[batch])
        loss.backward()
        state.optimizer.step()
        state.optimizer.zero_grad()
        state.step = step
        worker_sdk.heartbeat(step)

        must_save = worker_sdk.should_checkpoint(step)
        if must_save or step % 10 == 0:
            if saving:
                saving.result()  # one at a time
            path = arguments.checkpoint_dir / f"step_{step:06}"
            saving = dcp.async_save(
                {"state": state}, checkpoint_id=path, process_group=saving_group
            )
            if rank == 0:
                print(f"step {step} loss {loss:.4f}", flush=True)
        if must_save:
            saving.result()
            worker_sdk.checkpointed(step, wait=True)
    if saving:
        saving.result()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
