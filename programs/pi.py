"""Computes pi, the integral of 4 / (1 + x^2) from 0 to 1, by the trapezoid rule on any number of processes.

Every process adds up its share of the intervals, and one all-reduce adds up the shares, in each of several trials:

    torchrun --standalone --nproc-per-node 4 programs/pi.py --trials 5

Rank 0 prints a JSON line for each trial, timed with its all-reduce, and a last one for all of them:

    {"trial": 1, "trials": 5, "pi": 3.141592653589792, "error": 1.3e-15, "seconds": 0.05}
    {"pi": 3.141592653589792, "error": 1.3e-15, "mean_seconds": 0.05, "world_size": 4}
"""

import argparse
import json
import math
import os
import sys
import time

import torch
from torch import Tensor, distributed

CHUNK = 1_000_000  # intervals at a time: a few arrays of 8 MB, however many intervals there are


def print_row(row: dict[str, float]) -> None:
    """Print the row on rank 0 in one write, so that no other output gets into the line."""
    if distributed.get_rank() == 0:
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()


def select_share(intervals: int, rank: int, world_size: int) -> range:
    """The rank's range of intervals; the shares differ by one at most and leave none out."""
    return range(intervals * rank // world_size, intervals * (rank + 1) // world_size)


def integrate(share: range, intervals: int, device: torch.device) -> Tensor:
    """Add up the trapezoids of a share, each 1 / intervals wide."""
    total = torch.zeros((), dtype=torch.float64, device=device)
    for start in range(share.start, share.stop, CHUNK):
        stop = min(start + CHUNK, share.stop)
        x = torch.arange(start, stop + 1, dtype=torch.float64, device=device) / intervals
        total += torch.trapezoid(4 / (1 + x * x), dx=1 / intervals)
    return total


def compute(options: argparse.Namespace, device: torch.device) -> None:
    """Compute pi once per trial and print each trial, then their mean time."""
    rank = distributed.get_rank()
    world_size = distributed.get_world_size()
    times: list[float] = []
    result: dict[str, float] = {}
    for trial in range(1, options.trials + 1):
        start = time.perf_counter()
        total = integrate(select_share(options.intervals, rank, world_size), options.intervals, device)
        distributed.all_reduce(total)
        result = {"pi": total.item(), "error": abs(total.item() - math.pi)}
        times.append(time.perf_counter() - start)
        print_row({"trial": trial, "trials": options.trials} | result | {"seconds": times[-1]})
    print_row(result | {"mean_seconds": sum(times) / len(times), "world_size": world_size})


def main() -> None:
    """Compute pi as one of torchrun's processes."""
    parser = argparse.ArgumentParser(description="Computes pi; torchrun starts it.")
    parser.add_argument("--intervals", type=int, default=20_000_000)
    parser.add_argument("--trials", type=int, default=5)
    options = parser.parse_args()
    # NCCL needs a GPU for each process of this machine.
    has_gpu = 0 < int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= torch.cuda.device_count()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if has_gpu else "gloo")
    try:
        compute(options, device)
    finally:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
