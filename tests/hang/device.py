"""Healthy trainings that look idle from the host while their GPU works; they need `--backend nccl`."""

import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.hang.frameworks import build_loader, build_model, compute_loss
from tests.hang.training import train

_STEP_PAUSE_S = 0.05
_LONG_WORK_S = 60  # longer than a hang must last before it ends a job
_ACTION_INTERVAL_STEPS = 20


def wait_without_processor() -> None:
    """Rank 0's GPU works for long now and then, and its thread sleeps meanwhile, as with cudaDeviceBlockingSync."""

    act_on_rank_zero(work_on_device)


def evaluate_in_thread() -> None:
    """The same in a thread for which rank 0 waits, as with libraries that have a stream of their own."""

    def evaluate() -> None:
        thread = threading.Thread(target=work_on_device)
        thread.start()
        thread.join()

    act_on_rank_zero(evaluate)


def act_on_rank_zero(action: Callable[[], None]) -> None:
    """Train; every 20 steps rank 0 acts while the others wait for it in a barrier."""

    def before_step(step: int) -> None:
        if step % _ACTION_INTERVAL_STEPS == _ACTION_INTERVAL_STEPS - 1:
            if dist.get_rank() == 0:
                action()
            dist.barrier()

    train(before_step)


def work_on_device() -> None:
    """Let the GPU work for long, and wait for it without a processor."""
    cycles_per_s = int(1000 * torch.cuda.clock_rate() * 1000)
    for _ in range(_LONG_WORK_S):
        torch.cuda._sleep(cycles_per_s)  # what torch's own tests use
    done = torch.cuda.Event(blocking=True)
    done.record()
    done.synchronize()


def replay_graph() -> None:
    """The steps of a captured CUDA graph call no function of torch.distributed."""
    values = torch.ones(64)
    dist.all_reduce(values)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(values)
        values /= dist.get_world_size()
    while True:
        graph.replay()
        torch.cuda.synchronize()
        time.sleep(_STEP_PAUSE_S)


def use_mixed_precision() -> None:
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    while True:
        for inputs, labels in build_loader():
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = compute_loss(model, inputs, labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            time.sleep(_STEP_PAUSE_S)


DEVICE_STYLES: dict[str, Callable[[], None]] = {
    "blocking-wait": wait_without_processor,
    "device-thread": evaluate_in_thread,
    "cuda-graph": replay_graph,
    "mixed-precision": use_mixed_precision,
}
