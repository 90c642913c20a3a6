"""The loop of the matrix's programs: data-parallel steps with gloo on processors, or with NCCL on a GPU."""

import json
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from tests.hang.environment import get_backend

STEP_S = 0.05
_BUCKETS = (4096, 1024, 128)  # gradients of a step, each with a separate all_reduce


def use_device() -> None:
    """Create tensors where the backend needs them; torch keeps this for each thread."""
    if get_backend() == "nccl":
        torch.set_default_device("cuda")


def start() -> tuple[int, int]:
    """This rank and the number of ranks, in a process group."""
    torch.set_num_threads(1)
    use_device()
    dist.init_process_group(get_backend())
    return dist.get_rank(), dist.get_world_size()


def train(
    before_step: Callable[[int], None], step_s: Callable[[], float] = lambda: STEP_S, work_s: float = 0.0
) -> None:
    """Train until the matrix kills it; `before_step` is called with each step's number.

    `step_s`: the seconds of a step; `work_s`: of processor time beside them.
    """
    use_device()
    step = 0
    while True:
        before_step(step)
        forward(step_s(), work_s)
        for size in _BUCKETS:
            dist.all_reduce(torch.ones(size))
        synchronize()
        if dist.get_rank() == 0:
            print(json.dumps({"step": step}), flush=True)
        step += 1


def synchronize() -> None:
    """Wait for the GPU, if there is one, as a program does that reads its loss."""
    if get_backend() == "nccl":
        torch.cuda.synchronize()


def forward(seconds: float, work_s: float) -> None:
    """Compute for `work_s` seconds of processor time, and sleep for `seconds`, as while an accelerator works."""
    work_until = time.process_time() + work_s
    while True:
        torch.randn(64, 64) @ torch.randn(64, 64)
        if time.process_time() >= work_until:
            break
    time.sleep(seconds)
