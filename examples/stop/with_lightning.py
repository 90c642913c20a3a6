"""Lightning: its checkpoint callback saves when SIGTERM asks it to stop, and ckpt_path resumes; torchrun starts it."""

import argparse
import itertools
import json
import os
import time
from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class ResumableLoader(DataLoader[tuple[torch.Tensor, ...]]):
    """Continues in the middle of an epoch: Lightning saves and loads the state of a loader that has one."""

    position = 0  # the number of this epoch's batches so far

    def __iter__(self) -> Iterator[Any]:
        """The epoch's remaining batches."""
        self.position %= len(self)  # Lightning does not ask for more than the last batch
        for batch in itertools.islice(super().__iter__(), self.position, None):
            self.position += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """The content of a checkpoint."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a checkpoint."""
        self.position = state["position"]


class Model(LightningModule):
    """Learns the sum of eight numbers."""

    def __init__(self, pause_s: float) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
        self.pause_s = pause_s

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=0.05)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Return the loss of a batch; rank 0 prints it."""
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.layer(inputs), targets)
        time.sleep(self.pause_s)
        if self.global_rank == 0:
            print(json.dumps({"step": self.global_step + 1, "loss": loss.item()}), flush=True)
        return loss


def main() -> None:
    """Train; the callback saves after each epoch and at a stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--pause", type=float, default=0.1, metavar="SECONDS", help="of each step")
    options = parser.parse_args()
    seed_everything(0)
    inputs = torch.rand(512, 8)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    sampler = DistributedSampler(data, int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"]), seed=0)
    checkpoints = ModelCheckpoint(
        os.environ["TORCHYARD_CHECKPOINTS"], save_top_k=-1, save_on_exception=True, save_on_train_epoch_end=True
    )
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"]),
        max_epochs=options.epochs,
        callbacks=[checkpoints],
        use_distributed_sampler=False,  # it would build another loader, without a position
        logger=False,
        enable_progress_bar=False,
    )
    loader = ResumableLoader(data, batch_size=16, sampler=sampler)
    trainer.fit(Model(options.pause), loader, ckpt_path=os.environ.get("TORCHYARD_RESUME") or None)


if __name__ == "__main__":
    main()
