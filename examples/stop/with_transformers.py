"""Transformers: a callback has the Trainer save when SIGTERM asks it to stop; torchrun starts it."""

import argparse
import json
import os
import signal
import time
from typing import Any

import torch
from torch import distributed
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed


class Sequences(Dataset[dict[str, torch.Tensor]]):
    """Texts that count upwards."""

    def __len__(self) -> int:
        """The number of texts."""
        return 256

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """The text of an index: 16 tokens."""
        tokens = (torch.arange(16) + index) % 32
        return {"input_ids": tokens, "labels": tokens}


class StopCallback(TrainerCallback):
    """Has the Trainer save and end on all ranks, after the step in which SIGTERM has reached one of them."""

    def __init__(self) -> None:
        self.is_asked_to_stop = torch.zeros(1)  # with NCCL, on the rank's GPU
        self.is_stopped = False
        signal.signal(signal.SIGTERM, lambda number, frame: self.is_asked_to_stop.fill_(1))

    def on_step_end(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        """Agree on a stop."""
        stop_count = self.is_asked_to_stop.clone()
        if args.world_size > 1:
            distributed.all_reduce(stop_count)
        if stop_count:
            self.is_stopped = True
            control.should_save = True
            control.should_training_stop = True


class Printer(TrainerCallback):
    """Prints each logged loss on rank 0, and makes each step slower."""

    def __init__(self, pause_s: float) -> None:
        self.pause_s = pause_s

    def on_step_end(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        """Wait."""
        time.sleep(self.pause_s)

    def on_log(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        """Print the row that was logged."""
        row = state.log_history[-1]
        if state.is_world_process_zero and "loss" in row:
            print(json.dumps({"step": state.global_step, "steps": state.max_steps, "loss": row["loss"]}), flush=True)


def main() -> None:
    """Train; the Trainer saves after each epoch and at a stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--pause", type=float, default=0.1, metavar="SECONDS", help="of each step")
    options = parser.parse_args()
    set_seed(0)
    config = GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    arguments = TrainingArguments(
        output_dir=os.environ["TORCHYARD_CHECKPOINTS"],
        save_strategy="epoch",
        save_total_limit=2,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=8,
        learning_rate=0.01,
        logging_steps=1,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    stop = StopCallback()
    callbacks = [Printer(options.pause), stop]
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Sequences(), callbacks=callbacks)
    trainer.train(resume_from_checkpoint=os.environ.get("TORCHYARD_RESUME") or None)
    if stop.is_stopped:
        raise SystemExit(f"stopped after step {trainer.state.global_step}")


if __name__ == "__main__":
    main()
