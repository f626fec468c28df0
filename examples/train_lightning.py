"""Train on handwritten digits with Lightning.

agent join --nproc-per-node 2 --max-restarts 3 examples/train_lightning.py
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import lightning as L  # noqa: N812 - as its users write it
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import worker_sdk


class Digits(L.LightningModule):
    """A perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch, batch_idx):
        pictures, labels = batch
        return nn.functional.cross_entropy(self.model(pictures), labels)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Progress(L.Callback):
    """Reports steps to drumbeat, and saves when drumbeat asks for a checkpoint."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def on_train_start(self, trainer, module):
        # Lightning's handler broadcasts to all ranks, one of which is gone when a worker failed.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if trainer.is_global_zero and trainer.global_step:
            print(f"resumed from step_{trainer.global_step}", flush=True)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        step = trainer.global_step
        worker_sdk.heartbeat(step)
        if worker_sdk.should_checkpoint(step):
            trainer.save_checkpoint(self.directory / "last.ckpt")
            worker_sdk.checkpointed(step, wait=True)
        if trainer.is_global_zero and step % 10 == 0:
            print(f"step {step} loss {outputs['loss']:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("checkpoints-lightning"))
    arguments = parser.parse_args()

    L.seed_everything(0)
    digits = load_digits()
    pictures = torch.tensor(digits.data, dtype=torch.float32) / 16
    data = TensorDataset(pictures, torch.tensor(digits.target))
    # Lightning's default directory is a new one for each start. It would not find its checkpoint.
    saving = ModelCheckpoint(arguments.checkpoint_dir, every_n_train_steps=10, save_last=True)
    trainer = L.Trainer(
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        max_steps=arguments.steps,
        callbacks=[saving, Progress(arguments.checkpoint_dir)],
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(Digits(), DataLoader(data, batch_size=64, shuffle=True), ckpt_path="last")


if __name__ == "__main__":
    main()
