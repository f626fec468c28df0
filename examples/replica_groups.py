"""Train on handwritten digits in replica groups of torchft: one that fails stops no other.

Only the launcher is new to a user of torchft: TORCHFT_LIGHTHOUSE is a lighthouse of the agent. On
the hosts of the first of four groups:

    agent join --coordinator head:29400 --run-id ft --replica-group 0/4 examples/replica_groups.py

Without --replica-group it trains as one job with DistributedDataParallel and a checkpoint, for
`make demo-replicas` to compare.
"""

from __future__ import annotations

import argparse
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from train_digits import BATCH, accuracy, build_model, load_data, save

CHECKPOINT_STEPS = 10


class Training:
    """The model, and batches that depend on the step and the group alone."""

    def __init__(self, part: int, parts: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.data, self.test_data = load_data()
        self.part, self.parts = part, parts
        self.model = build_model()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=2e-3)

    def loss(self, model: nn.Module, step: int) -> torch.Tensor:
        """Return the loss of a batch of the digits that this part has in a step."""
        order = torch.Generator().manual_seed(step)
        chosen = torch.randperm(len(self.data), generator=order)[self.part :: self.parts][:BATCH]
        pictures, labels = (tensor[chosen] for tensor in self.data.tensors)
        return nn.functional.cross_entropy(model(pictures), labels)

    def state(self) -> dict[str, object]:
        """Return what another worker needs to go on."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: dict[str, dict[str, object]]) -> None:
        """Go on from there."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def report(self, step: int, loss: torch.Tensor) -> None:
        """Print that a step is done."""
        print(f"step {step} part {self.part} loss {loss:.4f} at {time.monotonic():.3f}", flush=True)


def train_group(steps: int, group: int, groups: int) -> Training:
    """Train as one worker of a replica group. A new worker gets the weights of another group."""
    from torchft import Manager, Optimizer, ProcessGroupGloo  # noqa: PLC0415

    training = Training(group, groups)
    limit = timedelta(seconds=30)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=limit),
        load_state_dict=training.load,
        state_dict=training.state,
        min_replica_size=1,
        replica_id=f"group{group}",
        hostname="127.0.0.1",  # an example for one machine
        timeout=limit,
    )
    optimizer = Optimizer(manager, training.optimizer)
    while (step := manager.current_step()) < steps:
        optimizer.zero_grad()  # asks for the quorum of this step
        loss = training.loss(training.model, step)
        loss.backward()
        # torchft's wrapper for DDP raises AssertionError if a peer dies in an all-reduce of gloo.
        gradients = [p.grad for p in training.model.parameters() if p.grad is not None]
        for work in [manager.allreduce(gradient) for gradient in gradients]:
            work.wait()
        optimizer.step()
        if manager.current_step() > step:
            training.report(manager.current_step(), loss)
    manager.shutdown(wait=False)
    return training


def train_whole(steps: int, checkpoint: Path) -> Training:
    """Train as one worker of a job that restarts as a whole."""
    dist.init_process_group("gloo")
    training = Training(dist.get_rank(), dist.get_world_size())
    first = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        first = saved["step"]
        training.load(saved)
    model = DistributedDataParallel(training.model)
    for step in range(first, steps):
        training.optimizer.zero_grad()
        loss = training.loss(model, step)
        loss.backward()
        training.optimizer.step()
        training.report(step + 1, loss)
        if training.part == 0 and (step + 1) % CHECKPOINT_STEPS == 0:
            save(checkpoint, {"step": step + 1, **training.state()})
    dist.barrier()
    return training


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--checkpoint", type=Path, default=Path("replicas.pt"))
    arguments = parser.parse_args()
    if "REPLICA_GROUP_ID" in os.environ:
        group, groups = (os.environ[name] for name in ("REPLICA_GROUP_ID", "NUM_REPLICA_GROUPS"))
        training = train_group(arguments.steps, int(group), int(groups))
    else:
        training = train_whole(arguments.steps, arguments.checkpoint)
    share = accuracy(training.model, training.test_data)
    print(f"part {training.part}: test accuracy {share:.4f}", flush=True)
    # Threads of gloo and torchft may abort a process that ends as usual.
    os._exit(0)


if __name__ == "__main__":
    main()
