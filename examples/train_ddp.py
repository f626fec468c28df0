"""Train a small convolutional network on handwritten digits, with DistributedDataParallel.

An ordinary script for torchrun. It knows of no control plane: it reads the
usual environment variables, writes a checkpoint after every epoch and goes on
from the newest one when it is started again.

    torchrun --standalone --nproc-per-node 2 examples/train_ddp.py
"""

from __future__ import annotations

import argparse
import gc
import os
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

TEST_SHARE = 5  # every fifth picture is kept for the test
BATCH = 32


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument(
        "--checkpoint-dir", type=Path, help="where to save and resume (default: not at all)"
    )
    return parser.parse_args()


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Return the pictures to train on and those to test with."""
    digits = load_digits()
    pictures = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    labels = torch.tensor(digits.target)
    is_test = torch.arange(len(labels)) % TEST_SHARE == 0
    return (
        TensorDataset(pictures[~is_test], labels[~is_test]),
        TensorDataset(pictures[is_test], labels[is_test]),
    )


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def save(path: Path, state: dict[str, object]) -> None:
    """Replace the checkpoint at once: a worker may be killed at any moment."""
    unfinished = path.with_suffix(".tmp")
    torch.save(state, unfinished)
    unfinished.replace(path)


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    pictures, labels = data.tensors
    with torch.no_grad():
        return float((model(pictures).argmax(dim=1) == labels).float().mean())


def train_epoch(
    model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer, first_step: str
) -> float:
    """Train on all batches once and return the last loss; announce the first step if asked."""
    loss = torch.zeros(())
    for pictures, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pictures), labels)
        loss.backward()
        optimizer.step()
        if first_step:
            print(first_step, flush=True)
            first_step = ""
    return float(loss.detach())


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    train_data, test_data = load_data()
    sampler = DistributedSampler(train_data, seed=0)
    loader = DataLoader(train_data, batch_size=BATCH, sampler=sampler)
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    checkpoint = arguments.checkpoint_dir / "digits.pt" if arguments.checkpoint_dir else None
    epochs_done = 0
    if checkpoint and checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        epochs_done = saved["epochs_done"]

    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    announcement = f"rank {rank}: first step, epoch {epochs_done + 1}, restart {restarts}"
    for epoch in range(epochs_done + 1, arguments.epochs + 1):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, loader, optimizer, announcement if rank == 0 else "")
        announcement = ""
        if rank == 0:
            if checkpoint:
                checkpoint.parent.mkdir(parents=True, exist_ok=True)
                state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
                save(checkpoint, {**state, "epochs_done": epoch})
            print(f"rank 0: epoch {epoch}/{arguments.epochs} done, loss {loss:.4f}", flush=True)

    if rank == 0:
        print(f"rank 0: test accuracy {accuracy(model.module, test_data):.4f}", flush=True)
    dist.destroy_process_group()
    # Gloo's threads live as long as the model refers to them, and abort the process if they
    # meet the end of the interpreter. The model is part of cycles, so `del` is not enough.
    del model, optimizer
    gc.collect()


if __name__ == "__main__":
    main()
