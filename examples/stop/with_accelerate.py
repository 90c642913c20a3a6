"""Accelerate: saved with save_state when SIGTERM asks it to stop, and resumed with load_state; torchrun starts it."""

import argparse
import json
import os
import signal
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration, set_seed
from torch.utils.data import DataLoader, TensorDataset


class Progress:
    """The number of steps so far, saved with the state of the Accelerator."""

    step = 0

    def state_dict(self) -> dict[str, int]:
        """The content of a checkpoint."""
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a checkpoint."""
        self.step = state["step"]


def main() -> None:
    """Train, and save after each epoch and at a stop; rank 0 prints each loss and each checkpoint."""
    options = read_options()
    accelerator = build_accelerator()
    set_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    loader = DataLoader(build_data(), batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    if os.environ.get("TORCHYARD_RESUME"):
        load(accelerator, Path(os.environ["TORCHYARD_RESUME"]))

    signal.signal(signal.SIGTERM, lambda number, frame: accelerator.set_trigger())
    steps = len(loader) * options.epochs
    while progress.step < steps:
        epoch, batch = divmod(progress.step, len(loader))
        loader.set_epoch(epoch)
        for inputs, targets in accelerator.skip_first_batches(loader, batch):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            time.sleep(options.pause)
            progress.step += 1
            if accelerator.is_main_process:
                print(json.dumps({"step": progress.step, "steps": steps, "loss": loss.item()}), flush=True)
            if accelerator.check_trigger():  # true on all ranks if one of them received SIGTERM
                save(accelerator, progress.step)
                raise SystemExit(f"stopped after step {progress.step}")
        save(accelerator, progress.step)
    accelerator.end_training()


def read_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--pause", type=float, default=0.1, metavar="SECONDS", help="of each step")
    return parser.parse_args()


def build_accelerator() -> Accelerator:
    """An Accelerator that numbers its checkpoints, keeps the last two, and draws an order that can be repeated."""
    project = ProjectConfiguration(
        project_dir=os.environ["TORCHYARD_CHECKPOINTS"], automatic_checkpoint_naming=True, total_limit=2
    )
    loaders = DataLoaderConfiguration(use_seedable_sampler=True)
    return Accelerator(cpu=True, project_config=project, dataloader_config=loaders)


def build_data() -> TensorDataset:
    """512 samples of eight numbers each [512, 8], and their sums [512, 1]."""
    inputs = torch.rand(512, 8)
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


def load(accelerator: Accelerator, checkpoint: Path) -> None:
    """Load a checkpoint on all ranks, and continue its number, which load_state does not."""
    accelerator.load_state(str(checkpoint))
    accelerator.project_configuration.iteration = int(checkpoint.name.removeprefix("checkpoint_")) + 1


def save(accelerator: Accelerator, step: int) -> None:
    """Save on all ranks, each of which has random states of its own."""
    path = accelerator.save_state()
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        print(json.dumps({"checkpoint": str(path), "step": step}), flush=True)


if __name__ == "__main__":
    main()
