"""Trains a small convolutional network on scikit-learn's handwritten digits, on any number of processes.

The 1,797 images come with scikit-learn, so nothing is downloaded. torchrun starts it:

    torchrun --standalone --nproc-per-node 2 programs/digits.py

On several machines, the same command on each:

    torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint FIRST_MACHINE:29400 --rdzv-id NAME programs/digits.py

Each rank prints where it runs. Rank 0 then prints one JSON line per epoch:

    {"epoch": 1, "epochs": 10, "loss": 1.1, "accuracy": 0.85, "seconds_per_step": 0.005, "world_size": 2}

`loss` is the mean over the epoch's training samples, `accuracy` the share of the held-out samples that are
recognised, both over all ranks. `seconds_per_step` is rank 0's.

With `--checkpoint-dir FOLDER` the training is saved after each epoch, in the background, and when SIGTERM asks it to
stop. All ranks stop after the same step, at most eight steps later; rank 0 saves it, and the processes then end by
SIGTERM. Rank 0 prints each checkpoint when it is complete:

    {"checkpoint": "FOLDER/step-15", "step": 15}

The next start continues after the step of $TORCHYARD_RESUME, the path of a checkpoint, or of the newest checkpoint in
FOLDER, also in the middle of an epoch. With as many processes as before, the losses are, bit for bit, those of a
training that never stopped. With another number, each step still learns from the same samples, but the ranks share
them differently, so that sums are rounded differently.

Every rank has the whole state, as always with DistributedDataParallel: rank 0 alone saves and loads it, and FOLDER need
not be shared by all machines. With FSDP, where each rank has a part, all ranks save and load, in a shared folder.
"""

import argparse
import gc
import json
import os
import re
import shutil
import signal
import socket
import sys
import time
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, cast

import numpy
import torch
import torch.distributed.checkpoint as dcp
import torch.distributed.nn  # noqa: F401 (before the process group: see main)
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Adam, Optimizer
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SPLIT_SEED = 0  # not --seed: a resumed run must never be tested on samples that it was trained on
# The ranks exchange their losses, and whether a stop is requested, once in so many steps: each exchange costs time.
EXCHANGE_STEPS = 8


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
    parser.add_argument("--save-pause", type=float, default=0, metavar="SECONDS", help="make each save so much slower")
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
    # The file that sklearn.datasets.load_digits reads: to import scikit-learn would cost each rank a second.
    path = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = torch.from_numpy(numpy.loadtxt(str(path), delimiter=","))
    images = rows[:, :-1].to(torch.float32).reshape(-1, 1, 8, 8) / 16
    labels = rows[:, -1].to(torch.int64)
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


@dataclass
class Progress:
    """The position of a training after an exchange of the ranks, the same on all of them."""

    step: int = 0  # the number of steps so far, in all epochs
    epoch: int = 1  # the epoch of the next step
    batch: int = 0  # the number of this epoch's batches that were trained on
    loss_sum: float = 0.0  # the losses of their samples, over all ranks
    row: str = ""  # the JSON line of the last finished epoch; "" before the first one has finished


class CheckpointWriter(dcp.FileSystemWriter):
    """Writes a checkpoint to PATH.tmp and renames it to PATH once it is complete: a kill leaves no torn one at PATH.

    Then the checkpoint is printed, and of the others in its folder only the previous one is kept, in case the file
    system loses the new one.
    """

    def __init__(self, path: Path, *, pause_s: float) -> None:
        super().__init__(path.with_name(f"{path.name}.tmp"))
        self.final_path = path
        self.pause_s = pause_s

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Complete the checkpoint. DCP calls it after the data is written, in the thread of the save."""
        time.sleep(self.pause_s)
        super().finish(metadata, results)
        if self.final_path.exists():  # of a training that went on from here, until it was resumed from an earlier step
            shutil.rmtree(self.final_path)
        os.rename(self.path, self.final_path)
        step = get_step(self.final_path)
        print_line(json.dumps({"checkpoint": str(self.final_path), "step": step}))
        folder = self.final_path.parent
        previous = [path for path in list_checkpoints(folder) if get_step(path) < step][-1:]
        for path in folder.glob("step-*"):
            if path not in (self.final_path, *previous):
                shutil.rmtree(path, ignore_errors=True)  # a file in use, for example: the next save removes it


def list_checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints of a folder, in the order of their steps; empty if there is no folder."""
    return sorted((path for path in folder.glob("step-*") if re.fullmatch(r"step-\d+", path.name)), key=get_step)


def get_step(checkpoint: Path) -> int:
    """The step of a checkpoint, by its name: the number N of step-N."""
    return int(checkpoint.name.removeprefix("step-"))


def build_state(network: nn.Module, optimizer: Optimizer, progress: Progress) -> dict[str, Any]:
    """The content of a checkpoint. A network that draws random numbers (dropout) would add the generators' states."""
    # The names are those of the network without DistributedDataParallel, for the optimizer's tensors too.
    model_state, optimizer_state = get_state_dict(network, optimizer)
    return {"model": model_state, "optimizer": optimizer_state, "progress": asdict(progress)}


def load_checkpoint(folder: Path | None, group: distributed.ProcessGroup | None = None) -> dict[str, Any] | None:
    """Load the state of $TORCHYARD_RESUME, or of the folder's newest checkpoint; None if there is none.

    A checkpoint of the folder that is damaged is reported and ignored. That of $TORCHYARD_RESUME was chosen:
    CheckpointException if it is damaged. `group` contains this process alone.
    """
    chosen = os.environ.get("TORCHYARD_RESUME")
    if chosen:
        return load_state(Path(chosen), group)
    for path in reversed(list_checkpoints(folder) if folder else []):
        try:
            return load_state(path, group)
        except dcp.CheckpointException:
            print_line(f"ignored the checkpoint {path}: it is damaged")
    return None


def load_state(path: Path, group: distributed.ProcessGroup | None) -> dict[str, Any]:
    """Load the state that `build_state` built. CheckpointException if it cannot be read.

    A second network is filled, so that a damaged checkpoint does not leave a part of itself in the training's own.
    """
    network = build_network()
    state = build_state(network, Adam(network.parameters()), Progress())
    dcp.load(state, checkpoint_id=path, process_group=group)
    return state


class Trainer:
    """The part of one process in the training; all ranks call the same methods in the same order."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self.options = options
        self.device = device
        self.rank = distributed.get_rank()
        self.world_size = distributed.get_world_size()
        torch.manual_seed(options.seed)
        self.network = DistributedDataParallel(build_network().to(device))
        # After its first backward pass DistributedDataParallel arranges the gradients anew, and more than two ranks
        # then sum them in another order. A pass before the training makes the first step of a resumed one like others.
        self.network(torch.zeros(1, 1, 8, 8, device=device)).sum().backward()
        self.network.zero_grad()
        self.optimizer: Optimizer = Adam(self.network.parameters(), lr=options.lr)
        self.samples, self.test_samples = load_samples()
        self.sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(self.samples, seed=options.seed)
        self.progress = Progress()
        self.rank_loss_sum = torch.zeros((), dtype=torch.float64, device=device)  # this rank's since the last exchange
        self.seconds_per_step = 0.0  # of the last epoch, as far as this process trained it
        self.stop_requested = False
        # A save runs in a thread, which needs a group of its own: rank 0, and gloo because the data is on the CPU.
        self.save_group = distributed.new_group([0], backend="gloo")
        self.unfinished_save: Future[Metadata] | None = None

    def train(self) -> bool:
        """Train to the last requested epoch, and return whether it was reached: a stopped training is saved instead.

        If no epoch is left to train, the row of the last one is printed again.
        """
        self.resume()
        if self.options.checkpoint_dir:
            signal.signal(signal.SIGTERM, self.request_stop)  # else nothing could be saved: SIGTERM ends the process
        if self.progress.epoch > self.options.epochs:
            self.print_on_rank_zero(self.progress.row)
        while self.progress.epoch <= self.options.epochs and self.train_epoch():
            self.finish_epoch()
            self.save()
            self.print_on_rank_zero(self.progress.row)
            self.pause()
        is_finished: bool = self.progress.epoch > self.options.epochs
        if not is_finished:
            self.save()
        self.finish_save()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the handler would hold this object, and with it the group
        distributed.barrier()  # a rank that ends earlier can make torchrun end rank 0 in the middle of a save
        return is_finished

    def request_stop(self, signal_number: int, frame: object) -> None:
        """Handle SIGTERM: the ranks stop after a step that all of them choose."""
        self.stop_requested = True

    def train_epoch(self) -> bool:
        """Train on the epoch's remaining batches, and return whether none is left: False after a stop."""
        batch_size = self.options.batch_size // self.world_size
        self.sampler.set_epoch(self.progress.epoch)
        remaining = list(self.sampler)[self.progress.batch * batch_size :]
        batches = DataLoader(self.samples, batch_size, sampler=remaining)
        start = time.perf_counter()
        last_batch = self.progress.batch + len(batches)
        for images, labels in batches:
            self.step(images.to(self.device), labels.to(self.device))
            # At the same batches also after a resume, so that the losses are added in the same order.
            is_exchange_due = self.progress.batch % EXCHANGE_STEPS == 0 or self.progress.batch == last_batch
            if is_exchange_due and self.exchange():
                return False
        self.seconds_per_step = (time.perf_counter() - start) / max(1, len(batches))
        return True

    def step(self, images: Tensor, labels: Tensor) -> None:
        """Learn from one batch."""
        self.optimizer.zero_grad()
        loss = cross_entropy(self.network(images), labels)
        loss.backward()
        self.optimizer.step()
        self.rank_loss_sum += loss.detach().double() * len(labels)
        self.progress.step += 1
        self.progress.batch += 1

    def exchange(self) -> bool:
        """Add the losses of all ranks to the progress; return whether a rank was asked to stop: the same on all."""
        stop_request = torch.tensor(self.stop_requested, dtype=torch.float64, device=self.device)
        sums = torch.stack([self.rank_loss_sum, stop_request])
        distributed.all_reduce(sums)
        loss_sum, stop_count = sums.tolist()
        self.progress.loss_sum += loss_sum
        self.rank_loss_sum.zero_()
        return bool(stop_count)

    def finish_epoch(self) -> None:
        """Test the network, and set the progress to the start of the next epoch, with the row of this one."""
        sums = torch.tensor([len(self.sampler), *self.count_correct()], dtype=torch.float64, device=self.device)
        distributed.all_reduce(sums)
        sample_count, correct_count, test_count = sums.tolist()
        row = {
            "epoch": self.progress.epoch,
            "epochs": self.options.epochs,
            "loss": round(self.progress.loss_sum / sample_count, 6),
            "accuracy": round(correct_count / test_count, 6),
            "seconds_per_step": round(self.seconds_per_step, 6),
            "world_size": self.world_size,
        }
        self.progress = Progress(self.progress.step, self.progress.epoch + 1, row=json.dumps(row))

    @torch.no_grad()
    def count_correct(self) -> tuple[int, int]:
        """Count the recognised samples among this rank's held-out samples, and all of those."""
        images, labels = self.test_samples[list(shard(len(self.test_samples), self.rank, self.world_size))]
        # The module without its DDP wrapper: the ranks' parts differ in size, and nothing needs to be exchanged.
        predictions = self.network.module(images.to(self.device)).argmax(1).cpu()
        return int((predictions == labels).sum()), len(labels)

    def save(self) -> None:
        """Start to save on rank 0, in the background; an earlier save is finished first."""
        if self.rank or not self.options.checkpoint_dir:
            return
        self.finish_save()
        path = self.options.checkpoint_dir / f"step-{self.progress.step}"
        writer = CheckpointWriter(path, pause_s=self.options.save_pause)
        state = build_state(self.network, self.optimizer, self.progress)  # copied before async_save returns
        save = dcp.async_save(state, storage_writer=writer, process_group=self.save_group)
        self.unfinished_save = cast("Future[Metadata]", save)

    def finish_save(self) -> None:
        """Wait for the last save. CheckpointException if it failed."""
        if self.unfinished_save:
            self.unfinished_save.result()
            self.unfinished_save = None

    def resume(self) -> None:
        """Continue from a checkpoint, if there is one."""
        # Rank 0 reads for all: ranks that saw different files would run different numbers of epochs and wait forever.
        message = [load_checkpoint(self.options.checkpoint_dir, self.save_group) if self.rank == 0 else None]
        distributed.broadcast_object_list(message, device=self.device)
        state = message[0]
        if state is None:
            return
        set_state_dict(
            self.network, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        self.progress = Progress(**state["progress"])
        self.print_on_rank_zero(
            f"resumed after step {self.progress.step}, at batch {self.progress.batch} of epoch {self.progress.epoch}"
        )

    def pause(self) -> None:
        """Wait for --pause, unless a stop is requested."""
        end = time.monotonic() + self.options.pause
        while not self.stop_requested and time.monotonic() < end:
            time.sleep(0.1)  # SIGTERM does not end a sleep: its handler runs, and the sleep continues

    def print_on_rank_zero(self, line: str) -> None:
        if self.rank == 0:
            print_line(line)


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
        is_finished = Trainer(options, device).train()
    finally:
        gc.collect()  # set_state_dict leaves a cycle that refers to the network, and through it to the group
        distributed.destroy_process_group()
    if not is_finished:
        # torchrun and the launcher see a process that was stopped, and do not take it for a success.
        signal.raise_signal(signal.SIGTERM)


if __name__ == "__main__":
    main()
