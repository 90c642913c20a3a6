"""Healthy trainings as people write them with torch's wrappers and with the common libraries."""

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from tests.hang.actions import burn
from tests.hang.environment import get_backend
from tests.hang.training import synchronize, train

_STEP_PAUSE_S = 0.05
_GROUP_INTERVAL_STEPS = 60
_LATE_WORK_S = 15.0
# Each style's package, which an environment may lack; a style without one needs torch alone.
PACKAGES = {"accelerate": "accelerate", "lightning": "lightning", "transformers": "transformers"}


def find_missing_program(style: str, python: str) -> str | None:
    """Why a style cannot be played with this interpreter on this machine; None if it can."""
    package = PACKAGES.get(style)
    if package:
        code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
        if subprocess.run([python, "-c", code], check=False).returncode:
            return f"the package {package} is not installed for {python}"
    return "there is no C++ compiler" if style == "torch-compile" and not shutil.which("g++") else None


def build_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))


def build_loader(workers: int = 0) -> DataLoader[tuple[torch.Tensor, ...]]:
    """Its tensors lie in the memory of the host, as data does; workers of a loader cannot use a GPU."""
    with torch.device("cpu"):
        data = TensorDataset(torch.rand(512, 64), torch.randint(8, (512,)))
    return DataLoader(
        data,
        batch_size=32,
        shuffle=True,
        num_workers=workers,
        generator=torch.Generator(torch.get_default_device()),
    )


def compute_loss(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    device = torch.get_default_device()
    return nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device))


def train_model(model: nn.Module, after_epoch: Callable[[int], None] | None = None, workers: int = 0) -> None:
    """Train until the matrix ends the job."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    epoch = 0
    while True:
        for inputs, labels in build_loader(workers):
            optimizer.zero_grad()
            compute_loss(model, inputs, labels).backward()
            optimizer.step()
            synchronize()
            time.sleep(_STEP_PAUSE_S)
        if after_epoch:
            after_epoch(epoch)
        epoch += 1


def use_ddp() -> None:
    train_model(DistributedDataParallel(build_model()))


def use_ddp_with_workers() -> None:
    """The workers of the data loader start again in each epoch."""
    train_model(DistributedDataParallel(build_model()), workers=2)


def accumulate() -> None:
    model = DistributedDataParallel(build_model())
    while True:
        for number, (inputs, labels) in enumerate(build_loader()):
            if number % 8:
                with model.no_sync():
                    compute_loss(model, inputs, labels).backward()
            else:
                compute_loss(model, inputs, labels).backward()
            synchronize()
            time.sleep(_STEP_PAUSE_S)


def evaluate_in_all_ranks() -> None:
    train_model(DistributedDataParallel(build_model()), lambda epoch: burn(5))


def use_fsdp() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = build_model()
    fully_shard(model, mesh=init_device_mesh(torch.get_default_device().type, (dist.get_world_size(),)))
    train_model(model)


def save_distributed() -> None:
    from torch.distributed.checkpoint.state_dict_saver import save as save_checkpoint

    model = DistributedDataParallel(build_model())
    folder = Path(tempfile.gettempdir(), f"torchyard-dcp-{os.environ['MASTER_PORT']}")

    def save(epoch: int) -> None:
        save_checkpoint({"model": model.state_dict()}, checkpoint_id=str(folder / str(epoch % 2)))

    train_model(model, save)


def compile_model() -> None:
    train_model(DistributedDataParallel(torch.compile(build_model())))


def save_in_background() -> None:
    """A thread writes checkpoints while the ranks train."""

    def write() -> None:
        while True:
            with tempfile.TemporaryFile() as file:
                torch.save(torch.ones(1 << 20), file)
            time.sleep(1)

    threading.Thread(target=write, daemon=True).start()
    train(ignore_step)


def ignore_step(step: int) -> None:
    """Nothing is done before a step."""


def train_in_thread() -> None:
    thread = threading.Thread(target=train, args=(ignore_step,))
    thread.start()
    thread.join()


def use_subgroups() -> None:
    """Pairs of ranks reduce among themselves, and all ranks now and then."""
    groups = [dist.new_group([first, first + 1]) for first in range(0, dist.get_world_size() - 1, 2)]
    own_group = dist.get_rank() // 2
    step = 0
    while True:
        if own_group < len(groups):
            dist.all_reduce(torch.ones(64), group=groups[own_group])
        synchronize()
        time.sleep(_STEP_PAUSE_S * (1 + dist.get_rank() % 3))
        if step % 50 == 0:
            dist.all_reduce(torch.ones(64))
        step += 1


def set_up_groups_late() -> None:
    """Now and then the last two ranks set up a group, before which one works for long; the others train on."""
    rank = dist.get_rank()
    last_rank = dist.get_world_size() - 1

    def before_step(step: int) -> None:
        if step % _GROUP_INTERVAL_STEPS == _GROUP_INTERVAL_STEPS - 1:
            if rank == last_rank:
                burn(_LATE_WORK_S)
            dist.new_group([last_rank - 1, last_rank])

    train(before_step)


def use_pipeline() -> None:
    """Each rank receives from the one before, works, and sends to the one after."""
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    while True:
        if rank > 0:
            dist.recv(torch.empty(64), src=rank - 1)
            synchronize()
        time.sleep(_STEP_PAUSE_S)
        if rank < world_size - 1:
            dist.send(torch.ones(64), dst=rank + 1)
        dist.barrier()


def gather_objects() -> None:
    def gather(_: int) -> None:
        results: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(results, {"rank": dist.get_rank(), "losses": [0.5] * 1000})

    train(gather)


def prepare_data_once() -> None:
    """Rank 0 prepares the data, and the others look 20 times a second whether it is ready."""
    path = Path(tempfile.gettempdir(), f"torchyard-data-{os.environ['MASTER_PORT']}")
    if dist.get_rank() == 0:
        burn(10)
        path.touch()
    while not path.exists():
        time.sleep(0.05)
    train(ignore_step)


def end_at_different_times() -> None:
    """The job ends normally; some ranks need longer for it than others."""
    for _ in range(100):
        dist.all_reduce(torch.ones(64))
        time.sleep(_STEP_PAUSE_S)
    dist.barrier()
    if dist.get_rank() % 2:
        burn(15)
    dist.destroy_process_group()


def use_accelerate() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=get_backend() == "gloo")
    model, optimizer, loader = accelerator.prepare(
        build_model(), torch.optim.SGD(build_model().parameters()), build_loader()
    )
    while True:
        for inputs, labels in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(inputs), labels))
            optimizer.step()
            time.sleep(_STEP_PAUSE_S)


def use_lightning() -> None:
    import lightning

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = build_model()

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            time.sleep(_STEP_PAUSE_S)
            return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    local_ranks = int(os.environ["LOCAL_WORLD_SIZE"])
    nodes = int(os.environ["WORLD_SIZE"]) // local_ranks
    trainer = lightning.Trainer(
        accelerator="cpu" if get_backend() == "gloo" else "gpu",
        strategy="ddp",
        devices=local_ranks,
        num_nodes=nodes,
        max_epochs=1000,
    )
    trainer.fit(Module(), build_loader())


def use_transformers() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=256, n_positions=64))
    data = [{"input_ids": torch.arange(32), "labels": torch.arange(32)} for _ in range(512)]
    folder = tempfile.mkdtemp()
    arguments = TrainingArguments(
        output_dir=folder,
        use_cpu=get_backend() == "gloo",
        max_steps=100_000,
        save_steps=50,
        save_total_limit=1,
        report_to=[],
    )
    Trainer(model=model, args=arguments, train_dataset=data).train()


# Those that set up their process group themselves.
OWN_SETUP = ("accelerate", "lightning", "transformers")
FRAMEWORKS: dict[str, Callable[[], None]] = {
    "ddp": use_ddp,
    "ddp-workers": use_ddp_with_workers,
    "ddp-accumulate": accumulate,
    "ddp-evaluate": evaluate_in_all_ranks,
    "fsdp": use_fsdp,
    "distributed-save": save_distributed,
    "torch-compile": compile_model,
    "background-save": save_in_background,
    "thread-training": train_in_thread,
    "subgroups": use_subgroups,
    "late-group": set_up_groups_late,
    "pipeline": use_pipeline,
    "objects": gather_objects,
    "prepare-once": prepare_data_once,
    "normal-end": end_at_different_times,
    "accelerate": use_accelerate,
    "lightning": use_lightning,
    "transformers": use_transformers,
}
