"""Learns y = 3x + 1 with torch, on any number of processes; torchrun starts it."""

import argparse
import json
import os
from pathlib import Path

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train; rank 0 prints one JSON line per 20 steps, and the path of the weights."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--lr", type=float, default=0.1)
    options = parser.parse_args()
    distributed.init_process_group("gloo")
    torch.manual_seed(distributed.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
    for step in range(1, options.steps + 1):
        x = torch.rand(64, 1) * 2 - 1
        loss = torch.nn.functional.mse_loss(model(x), 3 * x + 1)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if distributed.get_rank() == 0 and step % 20 == 0:
            print(json.dumps({"step": step, "steps": options.steps, "loss": loss.item()}), flush=True)
    if distributed.get_rank() == 0:
        path = Path(os.environ["TORCHYARD_CHECKPOINTS"], "line.pt")
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(model.module.state_dict(), path)
        print(json.dumps({"checkpoint": str(path)}), flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
