"""Measures the bandwidth of all-reduce between any number of processes, for sizes that double.

    torchrun --nproc-per-node 2 programs/allreduce.py --min-size 32K --max-size 16M

Without torchrun RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT must be set, and LOCAL_WORLD_SIZE where processes share a
machine's GPUs. Rank 0 prints a JSON line for each size:

    {"step": 1, "steps": 10, "size": 32768, "seconds": 0.0002, "algbw": 0.16, "busbw": 0.16, "wrong": 0}

`size` is a process's buffer in bytes. `seconds` is the median over the trials, each as long as its slowest rank took.
Bandwidths are in GB/s of 10^9 bytes, as nccl-tests defines them (doc/PERFORMANCE.md): algbw = size / seconds, and
busbw = algbw * 2 (n - 1) / n for n processes, which can be compared with the line rate whatever n is. `wrong` counts
the elements of all ranks and trials that are not the sum; with one of them the exit code is 1. A last line is about the
whole run, its bandwidths those of the largest size:

    {"algbw": 2.1, "busbw": 2.1, "mean_busbw": 1.4, "wrong": 0, "world_size": 2, "backend": "gloo", "dtype": "float32"}
"""

import argparse
import json
import os
import statistics
import sys
import time
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.elastic.multiprocessing.errors import record

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
Row = dict[str, Any]


def say(row: Row) -> None:
    """Print the row on rank 0 in one write, so that nothing else gets into the line."""
    if distributed.get_rank() == 0:
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()


def read_size(text: str) -> int:
    """Read a number of bytes, `32768` or `32K`."""
    digits, unit = (text[:-1], UNITS[text[-1]]) if text[-1:] in UNITS else (text, 1)
    if not (digits.isascii() and digits.isdigit() and int(digits)):
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write bytes, or 32K, 1M, 2G, with K = 1024 bytes")
    return int(digits) * unit


def read_options() -> argparse.Namespace:
    """Read the command line; one sentence and exit 2 where nothing can be measured."""
    # Without its usage the parser tells a mistake in one line.
    about = "Measures the bandwidth of all-reduce; torchrun starts it."
    parser = argparse.ArgumentParser(prog="allreduce.py", description=about, usage=argparse.SUPPRESS)
    # Not --min and --max: torchrun takes a program's --max for one of its own, and ends because it cannot tell which.
    parser.add_argument(
        "--min-size", type=read_size, default="32K", metavar="SIZE", help="the first size, in bytes or 32K"
    )
    parser.add_argument("--max-size", type=read_size, default="16M", metavar="SIZE", help="the largest size")
    parser.add_argument("--trials", type=int, default=20, help="for each size")
    parser.add_argument("--warmups", type=int, default=5, help="before the trials of each size, not counted")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    options = parser.parse_args()
    width = torch.finfo(DTYPES[options.dtype]).bits // 8
    if options.trials < 1 or options.warmups < 0:
        parser.error("there must be one trial or more, and no fewer than 0 warmups")
    if options.min_size > options.max_size or options.min_size % width:
        limits = f"at most --max-size {options.max_size}, and whole elements of {width} bytes"
        parser.error(f"--min-size {options.min_size} must be {limits}")
    if missing := [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
        parser.error(f"{', '.join(missing)} must be set; start it with torchrun")
    return options


def choose_device() -> tuple[torch.device, str]:
    """Give this process a GPU of its own and NCCL if there are enough of them here, else the CPU and gloo."""
    count = torch.cuda.device_count()
    if not 0 < int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= count:
        return torch.device("cpu"), "gloo"
    # Who starts processes without torchrun may give no local rank.
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", os.environ["RANK"])) % count)
    torch.cuda.set_device(device)
    return device, "nccl"


def double(first: int, last: int) -> list[int]:
    """The sizes from the first to the last one, each twice the one before."""
    return [first << step for step in range((last // first).bit_length())]


def shares(rank: int, world_size: int) -> tuple[Tensor, Tensor]:
    """What the rank adds to each element, and the sums of all ranks' shares, up to where both repeat.

    Two ranks alone add something to an element, so that its sum is exact in every dtype. A rank that is missing, one
    that counts twice, and parts that change places all make wrong sums.
    """
    position = torch.arange(5 * world_size)
    share = 1 + position % 5
    return share * ((position - rank) % world_size < 2), share * min(world_size, 2)


class Buffer:
    """The elements to be summed."""

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device) -> None:
        mine, sums = shares(distributed.get_rank(), distributed.get_world_size())
        self.mine, self.sums = mine.to(device, dtype), sums.to(device, dtype)
        self.count = size * 8 // torch.finfo(dtype).bits
        self.all = torch.empty(-(-self.count // len(mine)), len(mine), dtype=dtype, device=device)

    def fill(self) -> Tensor:
        """Forget the last sum, and give the elements."""
        self.all.copy_(self.mine)
        return self.all.view(-1)[: self.count]

    def count_wrong(self) -> Tensor:
        """How many elements are not the sum."""
        return (self.all != self.sums).view(-1)[: self.count].sum()


def settle(device: torch.device) -> None:
    """Wait until the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def run_trial(elements: Tensor) -> float:
    """Sum the elements over all ranks and give the seconds that this rank took; all ranks begin together."""
    distributed.barrier(device_ids=[elements.device.index] if elements.is_cuda else None)
    settle(elements.device)
    start = time.perf_counter()
    distributed.all_reduce(elements)
    settle(elements.device)
    return time.perf_counter() - start


def measure(size: int, options: argparse.Namespace, device: torch.device) -> Row:
    """Measure one size; alike on all ranks."""
    buffer = Buffer(size, DTYPES[options.dtype], device)
    for _ in range(options.warmups):
        run_trial(buffer.fill())
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    times = list[float]()
    for _ in range(options.trials):
        times.append(run_trial(buffer.fill()))
        wrong += buffer.count_wrong()
    slowest = torch.tensor(times, dtype=torch.float64, device=device)
    distributed.all_reduce(slowest, distributed.ReduceOp.MAX)
    distributed.all_reduce(wrong)
    return {"size": size, **rate(size, statistics.median(slowest.tolist())), "wrong": int(wrong)}


def rate(size: int, seconds: float) -> Row:
    """The bandwidths in GB/s; a lone process has no bus."""
    world_size = distributed.get_world_size()
    algbw = size / seconds / 1e9
    return {"seconds": seconds, "algbw": algbw, "busbw": algbw * 2 * (world_size - 1) / world_size}


def compare(options: argparse.Namespace, device: torch.device) -> int:
    """Measure and print each size, then the whole; how many elements were wrong."""
    sizes, rows = double(options.min_size, options.max_size), list[Row]()
    for step, size in enumerate(sizes, start=1):
        rows.append(measure(size, options, device))
        say({"step": step, "steps": len(sizes), **rows[-1]})
    wrong: int = sum(row["wrong"] for row in rows)
    mean = statistics.fmean(row["busbw"] for row in rows)
    whole = {"algbw": rows[-1]["algbw"], "busbw": rows[-1]["busbw"], "mean_busbw": mean}
    where = {"world_size": distributed.get_world_size(), "backend": distributed.get_backend(), "dtype": options.dtype}
    say({**whole, "wrong": wrong, **where})
    return wrong


@record  # torchrun's report of a failure then has the traceback
def main() -> None:
    """Measure as one of the processes."""
    options = read_options()
    device, backend = choose_device()
    distributed.init_process_group(backend)
    try:
        wrong = compare(options, device)
    finally:
        distributed.destroy_process_group()
    if wrong:
        sys.exit(f"allreduce.py: {wrong} elements are not the sum over all ranks.")


if __name__ == "__main__":
    main()
