"""Measures the bandwidth of all-reduce and other collectives between any number of processes (docs/benchmark.md).

    torchrun --nproc-per-node 2 programs/allreduce.py --min-size 32K --max-size 16M
    torchrun --nproc-per-node 2 programs/allreduce.py --least 10 --within 30  # does all_reduce reach 10 GB/s?

Without torchrun RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT must be set, and LOCAL_WORLD_SIZE where processes share a
machine's GPUs. Rank 0 prints a JSON line for each collective and size, and a last one for the whole run: the median of
the trials, each as long as its slowest rank took, and its bandwidths as nccl-tests defines them, in GB/s of 10^9 bytes.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.elastic.multiprocessing.errors import record

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
# busbw = algbw * factor * (n - 1) / n for n processes, or algbw itself. With factor 1, buffers have a part for each.
BUS_FACTORS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "alltoall": 1}
COLLECTIVES = (*BUS_FACTORS, "broadcast", "sendrecv")
Row = dict[str, Any]


def say(row: Row) -> None:
    """Print the row on rank 0 in one write, so that nothing else gets into the line."""
    if distributed.get_rank() == 0:
        print(json.dumps(row) + "\n", end="", flush=True)


def read_size(text: str) -> int:
    """Read a number of bytes, `32768` or `32K`."""
    digits, unit = (text[:-1], UNITS[text[-1]]) if text[-1:] in UNITS else (text, 1)
    if not (digits.isascii() and digits.isdigit() and int(digits)):
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write bytes, or 32K, 1M, 2G, with K = 1024 bytes")
    return int(digits) * unit


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(prog="allreduce.py", usage=argparse.SUPPRESS)  # without usage an error is one line
    add = parser.add_argument
    add("--collective", type=lambda text: text.split(","), default="all_reduce", help=f"of {','.join(COLLECTIVES)}")
    add("--sizes", type=lambda text: [read_size(each) for each in text.split(",")], help="32K,1M in place of a range")
    # Not --min and --max: torchrun takes a program's --max for an ambiguous abbreviation of its own options, and ends.
    add("--min-size", type=read_size, default="32K", metavar="SIZE", help="the first size, in bytes or 32K")
    add("--max-size", type=read_size, default="16M", metavar="SIZE", help="the largest size")
    add("--least", type=float, metavar="GB/S", help="end at the first size with this busbw, and with 1 if none has it")
    add("--within", type=float, default=600.0, metavar="SECONDS", help="with --least: all sizes; a hang: 1 min more")
    add("--trials", type=int, default=20, help="for each size")
    add("--warmups", type=int, default=5, help="before the trials of each size, not counted")
    add("--dtype", choices=DTYPES, default="float32")
    add("--backend", choices=("gloo", "nccl"), help="by default NCCL if each process has a GPU of its own, else gloo")
    add("--timing", choices=("auto", "events", "wall"), default="auto", help="auto: CUDA's events on GPUs")
    return parser


def read_options() -> argparse.Namespace:
    """Read the command line; print one sentence and exit with 2 if the options are wrong."""
    parser = build_parser()
    options = parser.parse_args()
    width = torch.finfo(DTYPES[options.dtype]).bits // 8
    if options.trials < 1 or options.warmups < 0 or options.within <= 0:
        parser.error("there must be one trial or more, no fewer than 0 warmups, and more than 0 seconds")
    if not options.sizes and (options.min_size > options.max_size or options.min_size % width):
        parser.error(f"--min-size must be at most --max-size {options.max_size}, and whole elements of {width} bytes")
    if unknown := [name for name in options.collective if name not in COLLECTIVES]:
        parser.error(f"{unknown[0]!r} is no collective; there are {', '.join(COLLECTIVES)}")
    if missing := [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
        parser.error(f"{', '.join(missing)} must be set; start it with torchrun")
    processes, steps = int(os.environ["WORLD_SIZE"]), (options.max_size // options.min_size).bit_length()
    options.sizes = options.sizes or [options.min_size << step for step in range(steps)]
    least = width * max(processes if BUS_FACTORS.get(name) == 1 else 1 for name in options.collective)
    if wrong := [size for size in options.sizes if size % width or size < least]:
        parser.error(f"size {wrong[0]} must be at least {least} bytes, and whole elements of {width} bytes")
    if "sendrecv" in options.collective and processes < 2:
        parser.error("sendrecv needs two processes or more")
    options.device, found = (torch.device("cpu"), "gloo") if options.backend == "gloo" else choose_device()
    options.events = options.timing != "wall" and found == "nccl"
    if found != (options.backend or found) or options.events < (options.timing == "events"):
        parser.error("nccl and --timing events need a GPU for each process of a machine")
    return options


def choose_device() -> tuple[torch.device, str]:
    """Give this process a GPU of its own and NCCL if there are enough of them here, else the CPU and gloo."""
    count = torch.cuda.device_count()
    if not 0 < int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= count:
        return torch.device("cpu"), "gloo"
    torch.cuda.set_device(device := int(os.environ.get("LOCAL_RANK", os.environ["RANK"])) % count)
    return torch.device("cuda", device), "nccl"


def spell(*numbers: int) -> Tensor:
    """Values from 1 to 80, exact in every dtype and repeated over all elements, that name numbers below 16**4.

    They differ after a shift by a power of two, too, which is what swapped chunks are.
    """
    digits = torch.tensor([number >> 4 * place & 15 for place in range(4) for number in numbers])
    position = torch.arange(5 * len(digits))
    return 1 + position % 5 + 5 * digits[position % len(digits)]


def shares(rank: int, world_size: int, part: int = 0) -> tuple[Tensor, Tensor]:
    """What the rank adds to each element of a part, and the sums of all ranks' shares, up to where both repeat.

    Only two ranks add something to an element, so that its sum is exact in every dtype.
    """
    share = spell(part).repeat(world_size)
    return share * ((torch.arange(len(share)) - rank) % world_size < 2), share * min(world_size, 2)


def cut(elements: Tensor, values: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The elements as rows that are as long as the values, at most 64 Mi elements at a time, and the rest."""
    whole = len(elements) // len(values) * len(values)
    rows = elements[:whole].view(-1, len(values))
    for start in range(0, len(rows), most := max(1, 2**26 // len(values))):
        yield rows[start : start + most], values
    if whole < len(elements):
        yield elements[whole:], values[: len(elements) - whole]


def list_values(name: str, rank: int, n: int) -> tuple[list[Tensor], list[Tensor]]:
    """The values of each part of the rank's input, and those that its output should have."""
    makers = {
        "all_reduce": lambda: ([shares(rank, n)[0]], [shares(rank, n)[1]]),
        "reduce_scatter": lambda: ([shares(rank, n, part)[0] for part in range(n)], [shares(rank, n, rank)[1]]),
        "all_gather": lambda: ([spell(rank, 0)], [spell(giver, 0) for giver in range(n)]),
        "alltoall": lambda: ([spell(rank, taker) for taker in range(n)], [spell(giver, rank) for giver in range(n)]),
        "broadcast": lambda: ([spell(0, 0) * (rank == 0)], [spell(0, 0)]),
        "sendrecv": lambda: ([spell(rank, (rank + 1) % n)], [spell((rank - 1) % n, rank)]),
    }
    return makers[name]()


def run(name: str, given: Tensor, taken: Tensor) -> None:
    """Run a collective; on a GPU it may only be queued after that."""
    if name in ("all_reduce", "broadcast"):
        distributed.all_reduce(given) if name == "all_reduce" else distributed.broadcast(given, 0)
    elif name != "sendrecv":  # by its newer name where torch has that
        names = {"all_gather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor"}
        older: Any = getattr(distributed, names.get(name, "all_to_all_single"), None)
        getattr(distributed, f"{name}_single", older)(taken, given)
    else:
        rank, n = distributed.get_rank(), distributed.get_world_size()
        there = distributed.P2POp(distributed.isend, given, (rank + 1) % n)
        for work in distributed.batch_isend_irecv([there, distributed.P2POp(distributed.irecv, taken, (rank - 1) % n)]):
            work.wait()


class Buffers:
    """A collective's input and output, which are one buffer for all_reduce and broadcast, and the values of both."""

    def __init__(self, name: str, size: int, options: argparse.Namespace) -> None:
        dtype, self.name = DTYPES[options.dtype], name
        given, taken = list_values(name, distributed.get_rank(), distributed.get_world_size())
        width, parts = torch.finfo(dtype).bits // 8, max(len(given), len(taken))
        self.size = (piece := size // width // parts) * parts * width
        self.given = torch.empty(piece * len(given), dtype=dtype, device=options.device)
        self.taken = self.given if name in ("all_reduce", "broadcast") else self.given.new_empty(piece * len(taken))
        given, taken = ([each.to(self.given) for each in values] for values in (given, taken))
        self.input = list(zip(self.given.view(len(given), -1), given, strict=True))
        self.output = list(zip(self.taken.view(len(taken), -1), taken, strict=True))
        self.fill()

    def fill(self) -> None:
        """Write the input, and clear an output of its own, so that no old result looks right."""
        if self.taken is not self.given:
            self.taken.zero_()
        for elements, values in (piece for part in self.input for piece in cut(*part)):
            elements.copy_(values)

    def count_wrong(self) -> Tensor:
        """The number of elements of the output that are not what they should be."""
        pieces = (piece for part in self.output for piece in cut(*part))
        return torch.stack([(elements != values).sum() for elements, values in pieces]).sum()


def run_trial(buffers: Buffers, events: bool) -> float:
    """Run the collective and return the seconds that this rank took; all ranks start together."""
    buffers.fill()
    distributed.barrier(device_ids=[buffers.given.device.index] if buffers.given.is_cuda else None)
    settle = torch.cuda.synchronize if buffers.given.is_cuda else int  # which does nothing
    settle()
    if events:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        run(buffers.name, buffers.given, buffers.taken)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3
    start = time.perf_counter()
    run(buffers.name, buffers.given, buffers.taken)
    settle()
    return time.perf_counter() - start


def check_backend(options: argparse.Namespace) -> None:
    """Refuse a collective that the backend lacks, before anything is measured; all ranks find the same."""
    for name in options.collective:
        try:
            buffers = allocate(name, 32 * distributed.get_world_size(), options)
            run(name, buffers.given, buffers.taken)
        except RuntimeError as error:
            if not isinstance(error, NotImplementedError) and "support" not in str(error):
                raise
            sys.stderr.write(f"allreduce.py: {distributed.get_backend()} of torch {torch.__version__} has no {name}.\n")
            raise SystemExit(2) from None


def allocate(name: str, size: int, options: argparse.Namespace) -> Buffers:
    """Allocate the buffers on all ranks; end with one sentence if they do not fit on one of them."""
    buffers, lacking = None, torch.tensor(-1, device=options.device)
    try:
        buffers = Buffers(name, size, options)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "of memory" not in str(error) and "allocate memory" not in str(error):
            raise
        lacking.fill_(distributed.get_rank())
    distributed.all_reduce(lacking, distributed.ReduceOp.MAX)
    if buffers is None or lacking >= 0:
        sys.exit(f"allreduce.py: {size} bytes for {name} do not fit into the memory of rank {int(lacking)}.")
    return buffers


def measure(name: str, size: int, options: argparse.Namespace) -> Row:
    """Measure one size; all ranks return the same row."""
    buffers = allocate(name, size, options)
    for _ in range(options.warmups):
        run_trial(buffers, options.events)
    times, wrong = list[float](), torch.zeros((), dtype=torch.int64, device=options.device)
    for _ in range(options.trials):
        times.append(run_trial(buffers, options.events))
        wrong += buffers.count_wrong()
    slowest = torch.tensor(times, dtype=torch.float64, device=options.device)
    distributed.all_reduce(slowest, distributed.ReduceOp.MAX)
    distributed.all_reduce(wrong)
    seconds, n, factor = statistics.median(slowest.tolist()), distributed.get_world_size(), BUS_FACTORS.get(name)
    algbw = buffers.size / seconds / 1e9
    busbw = algbw * (n > 1 if factor is None else factor * (n - 1) / n)
    spread = {"seconds": seconds, "min_seconds": slowest.min().item(), "mean_seconds": slowest.mean().item()}
    return {"collective": name, "size": buffers.size, **spread, "algbw": algbw, "busbw": busbw, "wrong": int(wrong)}


def check_fabric(options: argparse.Namespace) -> list[Row]:
    """Double the size until one reaches --least, or the next would end too late."""
    rows, begin = list[Row](), time.monotonic()
    for size in options.sizes:
        rows.append(measure("all_reduce", size, options))
        spent = torch.tensor(time.monotonic() - begin, device=options.device)
        distributed.all_reduce(spent, distributed.ReduceOp.MAX)
        if rows[-1]["busbw"] >= options.least or 2 * spent > options.within:  # each takes as long as all before it
            break
    say({"check_fabric": max(rows, key=lambda row: row["busbw"])})
    return rows


def compare(options: argparse.Namespace) -> list[Row]:
    """Measure and print each collective and size, then the whole run."""
    whole, rows = Row(), list[Row]()
    for name in options.collective:
        for size in options.sizes:
            rows.append(measure(name, size, options))
            say({"step": len(rows), "steps": len(options.collective) * len(options.sizes), **rows[-1]})
        own = [row for row in rows if row["collective"] == name]
        told = max(own, key=lambda row: row["size"]) | {"mean_busbw": statistics.fmean(row["busbw"] for row in own)}
        whole |= {(f"{name}_" if whole else "") + key: told[key] for key in ("algbw", "busbw", "mean_busbw")}
    whole |= {"wrong": sum(row["wrong"] for row in rows), "world_size": distributed.get_world_size()}
    where = {"backend": distributed.get_backend(), "dtype": options.dtype}
    say({**whole, **where, "timing": "events" if options.events else "wall"})
    return rows


@record  # torchrun's report of a failure then has the traceback
def main() -> None:
    """Measure as one of the processes."""
    options = read_options()
    backend = "gloo" if options.device.type == "cpu" else "nccl"
    distributed.init_process_group(backend, timeout=timedelta(minutes=1, seconds=options.within))
    try:
        check_backend(options)
        rows = check_fabric(options) if options.least else compare(options)
    finally:
        distributed.destroy_process_group()
    if wrong := sum(row["wrong"] for row in rows):
        sys.exit(f"allreduce.py: {wrong} elements are not the sum or the copies that they should be.")
    if options.least and (best := max(row["busbw"] for row in rows)) < options.least:
        sys.exit(f"allreduce.py: all_reduce reached a busbw of {best:.4g} GB/s, and {options.least:g} GB/s are needed.")


if __name__ == "__main__":
    main()
