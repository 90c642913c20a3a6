"""Plain DistributedDataParallel: saved with torch.save when SIGTERM asks it to stop; torchrun starts it.

Every step learns from samples that are drawn for this step and rank, so that a resumed training continues with the
same ones. programs/digits.py has a data set and its order to continue, and saves in the background.
"""

import argparse
import gc
import json
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed.nn  # noqa: F401 (before the process group, which the defaults of its functions would hold)
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer


def main() -> None:
    """Train as one of torchrun's processes."""
    options = read_options()
    distributed.init_process_group("gloo")
    train(options)
    # The model, which refers to the group, is gone now: else gloo's threads outlive it and sometimes abort the exit.
    gc.collect()
    distributed.destroy_process_group()


def train(options: argparse.Namespace) -> None:
    """Train, and save every 20 steps and at a stop; rank 0 prints each loss and each checkpoint."""
    rank = distributed.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    last_step = load(os.environ["TORCHYARD_RESUME"], model, optimizer) if os.environ.get("TORCHYARD_RESUME") else 0

    is_asked_to_stop = torch.zeros(1)
    signal.signal(signal.SIGTERM, lambda number, frame: is_asked_to_stop.fill_(1))
    for step in range(last_step + 1, options.steps + 1):
        generator = torch.Generator().manual_seed(step * 1000 + rank)
        inputs = torch.rand(32, 8, generator=generator)
        loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(options.pause)
        # Each rank receives SIGTERM at another moment; the sum is the same on all of them.
        stop_count = is_asked_to_stop.clone()
        distributed.all_reduce(stop_count)
        if rank == 0:
            print(json.dumps({"step": step, "steps": options.steps, "loss": loss.item()}), flush=True)
            if step % 20 == 0 or stop_count:
                save(step, model, optimizer)
        if stop_count:
            distributed.barrier()  # a rank that ends earlier can make torchrun end rank 0 in the middle of its save
            raise SystemExit(f"stopped after step {step}")


def read_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pause", type=float, default=0.1, metavar="SECONDS", help="of each step")
    return parser.parse_args()


def load(path: str, model: DistributedDataParallel, optimizer: Optimizer) -> int:
    """Load a checkpoint, on each rank, and return its step."""
    state = torch.load(path, weights_only=True)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def save(step: int, model: DistributedDataParallel, optimizer: Optimizer) -> None:
    """Write a checkpoint on one rank, under another name first, so that a kill leaves no torn one."""
    path = Path(os.environ["TORCHYARD_CHECKPOINTS"], f"step-{step}.pt")
    temp_path = path.with_suffix(".tmp")
    torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, temp_path)
    temp_path.replace(path)
    print(json.dumps({"checkpoint": str(path), "step": step}), flush=True)


if __name__ == "__main__":
    main()
