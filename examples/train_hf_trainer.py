"""Train a small language model on the pixels of handwritten digits with Hugging Face's Trainer.

The model is made from a configuration: nothing is downloaded.

    agent join --nproc-per-node 2 --max-restarts 3 examples/train_hf_trainer.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

import worker_sdk


class Progress(TrainerCallback):
    """Reports steps to drumbeat, and saves when drumbeat asks for a checkpoint."""

    def on_step_end(self, args, state, control, **kwargs):
        worker_sdk.heartbeat(state.global_step)
        if worker_sdk.should_checkpoint(state.global_step):
            control.should_save = True

    def on_save(self, args, state, control, **kwargs):
        if worker_sdk.should_checkpoint(state.global_step):
            worker_sdk.checkpointed(state.global_step, wait=True)

    def on_log(self, args, state, control, logs, **kwargs):
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("checkpoints-hf-trainer"))
    arguments = parser.parse_args()

    settings = TrainingArguments(
        output_dir=str(arguments.checkpoint_dir),
        max_steps=arguments.steps,
        per_device_train_batch_size=16,
        ddp_find_unused_parameters=False,
        learning_rate=3e-3,
        save_steps=10,
        save_total_limit=2,
        logging_steps=10,
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
        report_to="none",
    )
    set_seed(0)
    digits = load_digits()
    pixels = torch.tensor(digits.data, dtype=torch.long)  # 64 of each picture, from 0 to 16
    data = [{"input_ids": picture, "labels": picture} for picture in pixels]
    config = LlamaConfig(
        vocab_size=17,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    model = LlamaForCausalLM(config)
    trainer = Trainer(model, settings, train_dataset=data, callbacks=[Progress()])
    trainer.remove_callback(PrinterCallback)  # prints the loss without the step
    # The Trainer writes this file last. `resume_from_checkpoint=True` would also take a checkpoint
    # that a killed worker left unfinished.
    complete = arguments.checkpoint_dir.glob("checkpoint-*/trainer_state.json")
    newest = max(complete, key=lambda path: int(path.parent.name.split("-")[1]), default=None)
    if newest and trainer.is_world_process_zero():
        print(f"resumed from {newest.parent.name}", flush=True)
    trainer.train(resume_from_checkpoint=str(newest.parent) if newest else None)


if __name__ == "__main__":
    main()
