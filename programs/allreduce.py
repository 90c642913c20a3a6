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


def print_row(row: Row) -> None:
    """Print the row on rank 0 in one write, so that no other output gets into the line."""
    if distributed.get_rank() == 0:
        print(json.dumps(row) + "\n", end="", flush=True)


def read_size(text: str) -> int:
    """Read a number of bytes, `32768` or `32K`."""
    unit = UNITS.get(text[-1:], 1)
    digits = text[:-1] if unit > 1 else text
    if not (digits.isascii() and digits.isdigit() and int(digits)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: write bytes, or 32K, 1M, 2G, with K = 1024 bytes")
    return int(digits) * unit


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(prog="allreduce.py", usage=argparse.SUPPRESS)  # without usage an error is one line
    add = parser.add_argument
    add("--collective", type=lambda text: text.split(","), default="all_reduce", help=f"of {','.join(COLLECTIVES)}")
    add("--sizes", type=lambda text: [read_size(size) for size in text.split(",")], help="32K,1M in place of a range")
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
    for name in options.collective:
        if name not in COLLECTIVES:
            parser.error(f"{name!r} is not a collective; use one of {', '.join(COLLECTIVES)}")
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        parser.error(f"{', '.join(missing)} must be set; start it with torchrun")
    check_sizes(parser, options, width)
    choose_backend(parser, options)
    return options


def check_sizes(parser: argparse.ArgumentParser, options: argparse.Namespace, width: int) -> None:
    """Set `sizes`, unless they were given; exit with 2 if one is too small. `width`: bytes of an element."""
    processes = int(os.environ["WORLD_SIZE"])
    if not options.sizes:
        steps = (options.max_size // options.min_size).bit_length()
        options.sizes = [options.min_size << step for step in range(steps)]
    minimum = width * max(processes if BUS_FACTORS.get(name) == 1 else 1 for name in options.collective)
    for size in options.sizes:
        if size % width or size < minimum:
            parser.error(f"size {size} must be at least {minimum} bytes, and whole elements of {width} bytes")
    if "sendrecv" in options.collective and processes < 2:
        parser.error("sendrecv requires two processes or more")


def choose_backend(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Set `device`, and `events` if CUDA's events measure the time; exit with 2 if the GPUs do not suffice."""
    if options.backend == "gloo":
        options.device = torch.device("cpu")
        backend = "gloo"
    else:
        options.device, backend = choose_device()
    options.events = options.timing != "wall" and backend == "nccl"
    if options.backend not in (None, backend) or (options.timing == "events" and not options.events):
        parser.error("nccl and --timing events require a GPU for each process of a machine")


def choose_device() -> tuple[torch.device, str]:
    """Give this process a GPU of its own and NCCL if there are enough of them here, else the CPU and gloo."""
    count = torch.cuda.device_count()
    if not 0 < int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= count:
        return torch.device("cpu"), "gloo"
    device = int(os.environ.get("LOCAL_RANK", os.environ["RANK"])) % count
    torch.cuda.set_device(device)
    return torch.device("cuda", device), "nccl"


def encode(*numbers: int) -> Tensor:
    """Values from 1 to 80, exact in every dtype and repeated over all elements, that name numbers below 16**4.

    They differ after a shift by a power of two, too, which is what swapped chunks are.
    """
    digits = torch.tensor([number >> 4 * position & 15 for position in range(4) for number in numbers])
    indices = torch.arange(5 * len(digits))
    return 1 + indices % 5 + 5 * digits[indices % len(digits)]


def build_shares(rank: int, world_size: int, part: int = 0) -> tuple[Tensor, Tensor]:
    """The rank's share of each element of a part, and the sums of all ranks' shares, up to where both repeat.

    Only two ranks have a share of an element, so that its sum is exact in every dtype.
    """
    share = encode(part).repeat(world_size)
    return share * ((torch.arange(len(share)) - rank) % world_size < 2), share * min(world_size, 2)


def split_rows(elements: Tensor, values: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The elements as rows that are as long as the values, at most 64 Mi elements at a time, and the rest."""
    row_count = len(elements) // len(values)
    aligned = row_count * len(values)
    rows = elements[:aligned].view(-1, len(values))
    rows_at_once = max(1, 2**26 // len(values))
    for start in range(0, row_count, rows_at_once):
        yield rows[start : start + rows_at_once], values
    if aligned < len(elements):
        yield elements[aligned:], values[: len(elements) - aligned]


def list_values(name: str, rank: int, n: int) -> tuple[list[Tensor], list[Tensor]]:
    """The values of each part of the rank's input, and those that its output should have."""
    makers = {
        "all_reduce": lambda: ([build_shares(rank, n)[0]], [build_shares(rank, n)[1]]),
        "reduce_scatter": lambda: (
            [build_shares(rank, n, part)[0] for part in range(n)],
            [build_shares(rank, n, rank)[1]],
        ),
        "all_gather": lambda: ([encode(rank, 0)], [encode(sender, 0) for sender in range(n)]),
        "alltoall": lambda: ([encode(rank, peer) for peer in range(n)], [encode(peer, rank) for peer in range(n)]),
        "broadcast": lambda: ([encode(0, 0) * (rank == 0)], [encode(0, 0)]),
        "sendrecv": lambda: ([encode(rank, (rank + 1) % n)], [encode((rank - 1) % n, rank)]),
    }
    return makers[name]()


def run(name: str, input_: Tensor, output: Tensor) -> None:
    """Run a collective; on a GPU it may only be queued after that."""
    if name in ("all_reduce", "broadcast"):
        distributed.all_reduce(input_) if name == "all_reduce" else distributed.broadcast(input_, 0)
    elif name != "sendrecv":  # by its newer name where torch has that
        names = {"all_gather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor"}
        default: Any = getattr(distributed, names.get(name, "all_to_all_single"), None)
        getattr(distributed, f"{name}_single", default)(output, input_)
    else:
        rank = distributed.get_rank()
        world_size = distributed.get_world_size()
        send = distributed.P2POp(distributed.isend, input_, (rank + 1) % world_size)
        receive = distributed.P2POp(distributed.irecv, output, (rank - 1) % world_size)
        for work in distributed.batch_isend_irecv([send, receive]):
            work.wait()


class Buffers:
    """A collective's input and output, which are one buffer for all_reduce and broadcast, and the values of both."""

    def __init__(self, name: str, size: int, options: argparse.Namespace) -> None:
        dtype = DTYPES[options.dtype]
        width = torch.finfo(dtype).bits // 8
        inputs, outputs = list_values(name, distributed.get_rank(), distributed.get_world_size())
        parts = max(len(inputs), len(outputs))
        part_elements = size // width // parts
        self.name = name
        self.size = part_elements * parts * width
        self.input = torch.empty(part_elements * len(inputs), dtype=dtype, device=options.device)
        self.output = self.input
        if name not in ("all_reduce", "broadcast"):
            self.output = self.input.new_empty(part_elements * len(outputs))
        input_values = [values.to(self.input) for values in inputs]
        output_values = [values.to(self.input) for values in outputs]
        self.input_parts = list(zip(self.input.view(len(inputs), -1), input_values, strict=True))
        self.output_parts = list(zip(self.output.view(len(outputs), -1), output_values, strict=True))
        self.fill()

    def fill(self) -> None:
        """Write the input, and clear an output of its own, so that no old result looks right."""
        if self.output is not self.input:
            self.output.zero_()
        for part in self.input_parts:
            for elements, values in split_rows(*part):
                elements.copy_(values)

    def count_errors(self) -> Tensor:
        """The number of elements of the output that differ from the expected values."""
        counts: list[Tensor] = []
        for part in self.output_parts:
            counts += [(elements != values).sum() for elements, values in split_rows(*part)]
        return torch.stack(counts).sum()


def run_trial(buffers: Buffers, *, use_events: bool) -> float:
    """Run the collective and return the seconds that this rank took; all ranks start together."""
    buffers.fill()
    distributed.barrier(device_ids=[buffers.input.device.index] if buffers.input.is_cuda else None)
    synchronize = torch.cuda.synchronize if buffers.input.is_cuda else int  # which does nothing
    synchronize()
    if use_events:
        start_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start_event.record()
        run(buffers.name, buffers.input, buffers.output)
        end_event.record()
        end_event.synchronize()
        return float(start_event.elapsed_time(end_event)) / 1e3
    start = time.perf_counter()
    run(buffers.name, buffers.input, buffers.output)
    synchronize()
    return time.perf_counter() - start


def check_backend(options: argparse.Namespace) -> None:
    """Refuse a collective that the backend lacks, before anything is measured; all ranks find the same."""
    for name in options.collective:
        try:
            buffers = allocate(name, 32 * distributed.get_world_size(), options)
            run(name, buffers.input, buffers.output)
        except RuntimeError as error:
            if not isinstance(error, NotImplementedError) and "support" not in str(error):
                raise
            sys.stderr.write(f"allreduce.py: {distributed.get_backend()} of torch {torch.__version__} has no {name}.\n")
            raise SystemExit(2) from None


def allocate(name: str, size: int, options: argparse.Namespace) -> Buffers:
    """Allocate the buffers on all ranks; end with one sentence if they do not fit on one of them."""
    buffers = None
    failed_rank = torch.tensor(-1, device=options.device)
    try:
        buffers = Buffers(name, size, options)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "of memory" not in str(error) and "allocate memory" not in str(error):
            raise
        failed_rank.fill_(distributed.get_rank())
    distributed.all_reduce(failed_rank, distributed.ReduceOp.MAX)
    if buffers is None or failed_rank >= 0:
        sys.exit(f"allreduce.py: {size} bytes for {name} do not fit into the memory of rank {int(failed_rank)}.")
    return buffers


def measure(name: str, size: int, options: argparse.Namespace) -> Row:
    """Measure one size; all ranks return the same row."""
    buffers = allocate(name, size, options)
    for _ in range(options.warmups):
        run_trial(buffers, use_events=options.events)
    times: list[float] = []
    errors = torch.zeros((), dtype=torch.int64, device=options.device)
    for _ in range(options.trials):
        times.append(run_trial(buffers, use_events=options.events))
        errors += buffers.count_errors()
    slowest = torch.tensor(times, dtype=torch.float64, device=options.device)
    distributed.all_reduce(slowest, distributed.ReduceOp.MAX)
    distributed.all_reduce(errors)
    seconds = statistics.median(slowest.tolist())
    world_size = distributed.get_world_size()
    factor = BUS_FACTORS.get(name)
    algbw = buffers.size / seconds / 1e9
    busbw = algbw * (world_size > 1 if factor is None else factor * (world_size - 1) / world_size)
    return {
        "collective": name,
        "size": buffers.size,
        "seconds": seconds,
        "min_seconds": slowest.min().item(),
        "mean_seconds": slowest.mean().item(),
        "algbw": algbw,
        "busbw": busbw,
        "wrong": int(errors),
    }


def check_fabric(options: argparse.Namespace) -> list[Row]:
    """Double the size until one reaches --least, or the next would end too late."""
    rows: list[Row] = []
    started_at = time.monotonic()
    for size in options.sizes:
        rows.append(measure("all_reduce", size, options))
        elapsed = torch.tensor(time.monotonic() - started_at, device=options.device)
        distributed.all_reduce(elapsed, distributed.ReduceOp.MAX)
        if rows[-1]["busbw"] >= options.least or 2 * elapsed > options.within:  # each takes as long as all before it
            break
    print_row({"check_fabric": max(rows, key=lambda row: row["busbw"])})
    return rows


def compare(options: argparse.Namespace) -> list[Row]:
    """Measure and print each collective and size, then the whole run."""
    summary: Row = {}
    rows: list[Row] = []
    step_count = len(options.collective) * len(options.sizes)
    for name in options.collective:
        for size in options.sizes:
            rows.append(measure(name, size, options))
            print_row({"step": len(rows), "steps": step_count} | rows[-1])
        collective_rows = [row for row in rows if row["collective"] == name]
        largest = max(collective_rows, key=lambda row: row["size"])
        prefix = f"{name}_" if summary else ""  # the first collective has the plain names
        summary[f"{prefix}algbw"] = largest["algbw"]
        summary[f"{prefix}busbw"] = largest["busbw"]
        summary[f"{prefix}mean_busbw"] = statistics.fmean(row["busbw"] for row in collective_rows)
    summary["wrong"] = sum(row["wrong"] for row in rows)
    summary["world_size"] = distributed.get_world_size()
    summary["backend"] = distributed.get_backend()
    summary["dtype"] = options.dtype
    summary["timing"] = "events" if options.events else "wall"
    print_row(summary)
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
    error_count = sum(row["wrong"] for row in rows)
    if error_count:
        sys.exit(f"allreduce.py: {error_count} elements differ from the expected sums or copies.")
    if options.least:
        busbw = max(row["busbw"] for row in rows)
        if busbw < options.least:
            sys.exit(
                f"allreduce.py: all_reduce reached a busbw of {busbw:.4g} GB/s, and {options.least:g} GB/s are needed."
            )


if __name__ == "__main__":
    main()
