"""Trains a small convolutional network on scikit-learn's handwritten digits, on any number of processes.

The 1,797 images come with scikit-learn, so nothing is downloaded. torchrun starts it:

    torchrun --standalone --nproc-per-node 2 programs/digits.py

On several machines, the same command on each:

    torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint FIRST_MACHINE:29400 --rdzv-id NAME programs/digits.py

With `--checkpoint-dir FOLDER`, shared by all machines, a second start continues after the last finished epoch.

Each rank prints where it runs. Rank 0 then prints one JSON line per epoch, after that epoch is in the checkpoint:

    {"epoch": 1, "epochs": 10, "loss": 1.1, "accuracy": 0.85, "seconds_per_step": 0.005, "world_size": 2}

`loss` is the mean over the epoch's training samples, `accuracy` the share of the held-out samples that are
recognised, both over all ranks. `seconds_per_step` is rank 0's.
"""

import argparse
import io
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed.nn  # noqa: F401 (before the process group: see main)
from sklearn.datasets import load_digits
from torch import Tensor, distributed, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Adam, Optimizer
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SPLIT_SEED = 0  # not --seed: a resumed run must never be tested on samples that it was trained on


def print_line(line: str) -> None:
    """Print a line in one write: `print` makes two when unbuffered, and processes then mix inside lines."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def read_options() -> argparse.Namespace:
    """Read the command line; print one sentence and exit with 2 if no training is possible with it."""
    parser = argparse.ArgumentParser(prog="digits.py", description="Trains on handwritten digits; torchrun starts it.")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=96, help="over all processes together")
    parser.add_argument("--lr", type=float, default=0.008)
    parser.add_argument("--seed", type=int, default=0, help="of the first weights and of the sample order")
    parser.add_argument("--checkpoint-dir", type=Path, default=os.environ.get("TORCHYARD_CHECKPOINTS") or None)
    parser.add_argument("--pause", type=float, default=0, metavar="SECONDS", help="wait after each epoch")
    init_help = "the rendezvous of the processes: env://, tcp://HOST:PORT or file:///PATH"
    parser.add_argument("--init-method", default="env://", metavar="URL", help=init_help)
    parser.add_argument("--local-rank", help="of torch.distributed.launch, which sets LOCAL_RANK too")
    options = parser.parse_args()
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        parser.exit(2, "digits.py: RANK and WORLD_SIZE are not set; start it with torchrun.\n")
    processes = int(os.environ["WORLD_SIZE"])
    if options.batch_size < 1 or options.batch_size % processes:
        nearest = max(processes, options.batch_size // processes * processes)
        problem = f"--batch-size {options.batch_size} cannot be shared equally by {processes} processes"
        parser.exit(2, f"digits.py: {problem}; {nearest} can.\n")
    return options


def choose_device() -> tuple[torch.device, str]:
    """Give this process a GPU of its own and NCCL if there are enough of them here, else the CPU and gloo."""
    if 0 < int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= torch.cuda.device_count():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        return device, "nccl"
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # the processes of a machine share its cores
    return torch.device("cpu"), "gloo"


def load_samples() -> tuple[TensorDataset, TensorDataset]:
    """Load the training and the held-out samples (1,438 and 359): images [n, 1, 8, 8] from 0 to 1, labels [n]."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SPLIT_SEED))
    test, training = order.tensor_split([len(order) // 5])
    return TensorDataset(images[training], labels[training]), TensorDataset(images[test], labels[test])


def shard(count: int, rank: int, world_size: int) -> range:
    """The indices of the rank's samples among `count`: unlike DistributedSampler's, never padded with repeated ones."""
    return range(rank, count, world_size)


def build_network() -> nn.Module:
    """Build the network: images [n, 1, 8, 8] in, one score for each of the ten digits [n, 10] out."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


class Trainer:
    """The part of one process in the training; all ranks call the same methods in the same order."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self.options = options
        self.device = device
        self.rank = distributed.get_rank()
        self.world_size = distributed.get_world_size()
        torch.manual_seed(options.seed)
        self.network = DistributedDataParallel(build_network().to(device))
        self.optimizer: Optimizer = Adam(self.network.parameters(), lr=options.lr)
        samples, self.test_samples = load_samples()
        self.sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(samples, seed=options.seed)
        self.batches = DataLoader(samples, options.batch_size // self.world_size, sampler=self.sampler)

    def train(self) -> None:
        """Train from the last finished epoch to the last requested one; if none is left, print the last row again."""
        row = self.resume()
        if row and row["epoch"] >= self.options.epochs:
            self.print_on_rank_zero(json.dumps(row))
            return
        for epoch in range(row.get("epoch", 0) + 1, self.options.epochs + 1):
            row = self.run_epoch(epoch)
            self.save(row)
            self.print_on_rank_zero(json.dumps(row))
            time.sleep(self.options.pause)

    def run_epoch(self, epoch: int) -> dict[str, Any]:
        self.sampler.set_epoch(epoch)
        start = time.perf_counter()
        losses = sum(self.step(images.to(self.device), labels.to(self.device)) for images, labels in self.batches)
        seconds = (time.perf_counter() - start) / len(self.batches)
        sums = torch.tensor([losses, len(self.sampler), *self.count_correct()], dtype=torch.float64, device=self.device)
        distributed.all_reduce(sums)
        loss, sample_count, correct_count, test_count = sums.tolist()
        return {
            "epoch": epoch,
            "epochs": self.options.epochs,
            "loss": round(loss / sample_count, 6),
            "accuracy": round(correct_count / test_count, 6),
            "seconds_per_step": round(seconds, 6),
            "world_size": self.world_size,
        }

    def step(self, images: Tensor, labels: Tensor) -> float:
        """Learn from one batch and return the sum of its samples' losses."""
        self.optimizer.zero_grad()
        loss = cross_entropy(self.network(images), labels)
        loss.backward()
        self.optimizer.step()
        return loss.item() * len(labels)

    @torch.no_grad()
    def count_correct(self) -> tuple[int, int]:
        """Count the recognised samples among this rank's held-out samples, and all of those."""
        images, labels = self.test_samples[list(shard(len(self.test_samples), self.rank, self.world_size))]
        # The module without its DDP wrapper: the ranks' parts differ in size, and nothing needs to be exchanged.
        predictions = self.network.module(images.to(self.device)).argmax(1).cpu()
        return int((predictions == labels).sum()), len(labels)

    def save(self, row: dict[str, Any]) -> None:
        """Write the checkpoint on rank 0; a kill or a power cut leaves the previous or the new one complete."""
        if self.rank or not self.options.checkpoint_dir:
            return
        path = self.options.checkpoint_dir / "digits.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {"row": row, "model": self.network.module.state_dict(), "optimizer": self.optimizer.state_dict()}
        with path.with_suffix(".tmp").open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(path.with_suffix(".tmp"), path)

    def resume(self) -> dict[str, Any]:
        """Load the checkpoint, if there is one, and return the row of its epoch, else an empty one."""
        # Rank 0 reads for all: ranks that saw different files would run different numbers of epochs and wait forever.
        message = [read_checkpoint(self.options.checkpoint_dir) if self.rank == 0 else {}]
        distributed.broadcast_object_list(message)
        state = message[0]
        if not state:
            return {}
        self.network.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        row: dict[str, Any] = state["row"]
        self.print_on_rank_zero(f"resumed after epoch {row['epoch']}")
        return row

    def print_on_rank_zero(self, line: str) -> None:
        if self.rank == 0:
            print_line(line)


def read_checkpoint(folder: Path | None) -> dict[str, Any]:
    """Read the folder's checkpoint; empty if there is none, or if it is damaged, which is printed."""
    path = folder / "digits.pt" if folder else None
    if path is None or not path.exists():
        return {}
    content = io.BytesIO(path.read_bytes())
    try:
        state: dict[str, Any] = torch.load(content, map_location="cpu", weights_only=True)
        return {key: state[key] for key in ("row", "model", "optimizer")}
    except Exception as error:  # torch.load raises nearly any exception, depending on where the damage is
        print_line(
            f"ignored the checkpoint {path}: it is damaged ({type(error).__name__}); training starts from epoch 1"
        )
        return {}


@record  # torchrun's report of a failure then has the traceback
def main() -> None:
    """Train as one of torchrun's processes."""
    options = read_options()
    device, backend = choose_device()
    # Without the import of torch.distributed.nn above, DistributedDataParallel would import it now, and the defaults of
    # its functions would hold this group forever: gloo's threads then outlive the group and sometimes abort the exit.
    rank = int(os.environ["RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    distributed.init_process_group(backend, options.init_method, rank=rank, world_size=world_size)
    try:
        location = f"on {socket.gethostname()} (local rank {os.environ.get('LOCAL_RANK', '0')})"
        print_line(f"rank {rank} of {world_size} {location}, backend {backend}")
        Trainer(options, device).train()
    finally:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
