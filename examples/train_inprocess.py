"""Train on handwritten digits, and go on in the same processes after a fault.

The model and data of ``train_ddp.py``. What may fail is in a function of its own;
when it fails on one worker it starts again on all of them, with a new process group,
from the newest checkpoint. Without an agent it is simply called.

    agent join --standalone --nproc-per-node 2 examples/train_inprocess.py --fail-epoch 3
"""

from __future__ import annotations

import argparse
import gc
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from train_ddp import BATCH, accuracy, build_model, load_data, save, train_epoch

from worker_sdk import inprocess


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--fail-epoch", type=int, help="raise once on the last rank, in this epoch")
    default = Path(tempfile.gettempdir(), "train-inprocess")
    parser.add_argument("--checkpoint-dir", type=Path, default=default)
    return parser.parse_args()


@inprocess.Wrapper(soft_timeout=60, hard_timeout=90)
def train(arguments: argparse.Namespace, call: inprocess.CallWrapper) -> float:
    """Train to the end; return the accuracy."""
    torch.manual_seed(0)
    dist.init_process_group("gloo")  # in here: each iteration has ranks and a port of its own
    rank = dist.get_rank()
    train_data, test_data = load_data()
    sampler = DistributedSampler(train_data, seed=0)
    loader = DataLoader(train_data, batch_size=BATCH, sampler=sampler)
    bare = build_model()
    model = DistributedDataParallel(bare)
    optimizer = torch.optim.Adam(bare.parameters(), lr=2e-3)

    checkpoint = arguments.checkpoint_dir / "digits.pt"
    epochs_done = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        bare.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        epochs_done = saved["epochs_done"]
    dist.barrier()  # no rank saves before all have loaded

    announcement = f"rank {rank}: iteration {call.iteration}, from epoch {epochs_done + 1}"
    for epoch in range(epochs_done + 1, arguments.epochs + 1):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, loader, optimizer, announcement)
        announcement = ""
        call.ping()  # from the first one on, silence for a minute is a fault
        is_last = rank == dist.get_world_size() - 1
        if epoch == arguments.fail_epoch and call.iteration == 0 and is_last:
            raise RuntimeError(f"told to fail in epoch {epoch}")
        if rank == 0:
            with call.atomic():  # no interruption in the middle of it
                state = {"model": bare.state_dict(), "optimizer": optimizer.state_dict()}
                save(checkpoint, {**state, "epochs_done": epoch})
            print(f"rank 0: epoch {epoch}/{arguments.epochs} done, loss {loss:.4f}", flush=True)

    # The model before the group: it would wait for the group's threads with the lock of
    # the interpreter held, and they may need it. It is part of cycles.
    del model, optimizer
    gc.collect()
    dist.destroy_process_group()
    return accuracy(bare, test_data)


def main() -> None:
    arguments = parse_arguments()
    arguments.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    print(f"test accuracy {train(arguments):.4f}", flush=True)


if __name__ == "__main__":
    main()
