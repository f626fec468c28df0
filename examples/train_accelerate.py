"""Train on handwritten digits with Hugging Face Accelerate.

agent join --nproc-per-node 2 --max-restarts 3 examples/train_accelerate.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import worker_sdk


def save(accelerator: Accelerator, path: Path) -> None:
    """Save so that a worker that is killed meanwhile leaves no half of a checkpoint."""
    unfinished = path.with_suffix(".tmp")
    accelerator.save_state(str(unfinished))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        unfinished.rename(path)
    accelerator.wait_for_everyone()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("checkpoints-accelerate"))
    arguments = parser.parse_args()

    # Without `cpu` and without a GPU every process would train by itself.
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    set_seed(0)
    digits = load_digits()
    pictures = torch.tensor(digits.data, dtype=torch.float32) / 16
    data = TensorDataset(pictures, torch.tensor(digits.target))
    loader = DataLoader(data, batch_size=64, shuffle=True, drop_last=True)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    step = 0
    saved = sorted(arguments.checkpoint_dir.glob("step_??????"))
    if saved:
        accelerator.load_state(str(saved[-1]))
        step = int(saved[-1].name.removeprefix("step_"))
        accelerator.print(f"resumed from {saved[-1].name}", flush=True)

    while step < arguments.steps:
        epoch, done = divmod(step, len(loader))
        loader.set_epoch(epoch)
        for inputs, labels in accelerator.skip_first_batches(loader, done):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            worker_sdk.heartbeat(step)
            must_save = worker_sdk.should_checkpoint(step)
            if must_save or step % 10 == 0:
                save(accelerator, arguments.checkpoint_dir / f"step_{step:06}")
                accelerator.print(f"step {step} loss {loss:.4f}", flush=True)
            if must_save:
                worker_sdk.checkpointed(step, wait=True)
            if step == arguments.steps:
                break
    accelerator.end_training()


if __name__ == "__main__":
    main()
