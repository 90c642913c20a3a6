"""A training in which one rank has a fault: `--fault CLASS --rank R --step S --seed N`.

The instant before a fault begins, its rank writes the moment and the true lines to a file (truth.py).
"""

import argparse
import atexit
import contextlib
import ctypes
import multiprocessing
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

from tests.hang.training import STEP_S, start, train
from tests.hang.truth import record_fault
from tests.hang.waits import FOREVER_S, WAITS

DISK_VARIABLE = "HANG_DISK"  # a small file system, for full-disk
QUOTA_VARIABLE = "HANG_QUOTA"  # the list of processes of a group with a CPU quota, for throttled
_SLOW_START_S = 15  # for slow-start
WORK_S = 0.01  # of processor time in a step, for throttled


class RankContext:
    """The roles of the ranks, as this rank's process has them, and the groups of the fault `groups`."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.seed: int = args.seed
        self.culprit: int = args.rank
        self.rank, self.world_size = start()
        self.partner = (self.culprit + 1) % self.world_size
        self.is_culprit = self.rank == self.culprit
        self.is_partner = self.rank == self.partner
        members = [self.culprit, self.partner] if args.seed % 2 == 0 else list(range(self.world_size))
        self.groups = [dist.new_group(sorted(members)) for _ in range(2)] if args.fault == "groups" else []


class BlockedData(IterableDataset[torch.Tensor]):
    """Its worker yields some batches, and then waits for an event that is never set."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from torch.zeros(4, 8, device="cpu")
        threading.Event().wait()


def sleep(_: RankContext) -> None:
    record_fault()
    time.sleep(FOREVER_S)


def lock(_: RankContext) -> None:
    mutex = threading.Lock()
    mutex.acquire()
    record_fault()
    mutex.acquire()


def sigstop(context: RankContext) -> None:
    """The rank stops itself, or is stopped at any line, possibly in a collective."""
    record_fault()
    if context.seed % 2 == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        subprocess.Popen(["sh", "-c", f"sleep 0.1; kill -STOP {os.getpid()}"])


def swallowed(context: RankContext) -> None:
    """A thread ends by a suppressed error before it sets the event for which the rank waits."""
    ready = threading.Event()
    timeouts_s: dict[str, float] = {}

    def prepare() -> None:
        with contextlib.suppress(KeyError):
            time.sleep(timeouts_s["loading"])
            ready.set()

    helper = threading.Thread(target=prepare, daemon=True)
    helper.start()
    if context.seed % 2 == 0:
        record_fault()
        ready.wait()
    else:
        waiter = threading.Thread(target=ready.wait, daemon=True)
        waiter.start()
        record_fault()
        waiter.join()


def loader(context: RankContext) -> None:
    data = iter(DataLoader(BlockedData(), batch_size=None, num_workers=1 + context.seed % 2))
    for _ in range(4):
        next(data)
    record_fault(2)
    while True:
        next(data)


def loader_queue(_: RankContext) -> None:
    batches: Any = multiprocessing.get_context("fork").Queue()
    feeder = multiprocessing.get_context("fork").Process(target=time.sleep, args=(FOREVER_S,), daemon=True)
    feeder.start()
    record_fault()
    batches.get()


def gil(context: RankContext) -> None:
    if context.seed % 2 == 0:
        record_fault()
        re.match(r"(a+)+$", "a" * 64 + "b")
    else:
        libc = ctypes.PyDLL(None)
        record_fault()
        libc.sleep(FOREVER_S)


def groups(context: RankContext) -> None:
    first_group, second_group = context.groups if context.is_culprit else reversed(context.groups)
    ones = torch.ones(64)
    record_fault()
    dist.all_reduce(ones, group=first_group)
    dist.all_reduce(ones, group=second_group)


def size(context: RankContext) -> None:
    """A rank uses another tensor and another operation, because two sizes of one operation are an error in gloo."""
    if context.seed % 2 == 0:
        record_fault()
        dist.gather(torch.ones(64), [torch.empty(64) for _ in range(context.world_size)], dst=context.culprit)
    else:
        record_fault()
        dist.all_gather([torch.empty(64) for _ in range(context.world_size)], torch.ones(64))


def operation(context: RankContext) -> None:
    ones = torch.ones(4096)
    if context.seed % 3 == 0:
        record_fault()
        dist.all_gather([torch.empty(4096) for _ in range(context.world_size)], ones)
    elif context.seed % 3 == 1:
        record_fault()
        dist.barrier()
    else:
        record_fault()
        dist.broadcast(ones, src=context.partner)


def broadcast(context: RankContext) -> None:
    """One rank, from which all others wait for data, waits for data from another one."""
    ones = torch.ones(4096)
    if context.is_culprit:
        record_fault()
        dist.broadcast(ones, src=context.partner)
    else:
        dist.broadcast(ones, src=context.culprit)


def new_group(context: RankContext) -> None:
    """One rank leaves another rank out of its list of members. With data of other sizes, gloo would end the job."""
    ranks = list(range(context.world_size))
    if context.is_culprit:
        ranks.remove(context.partner)
    group = dist.new_group(ranks)
    record_fault()
    dist.barrier(group=group)


def first_step(context: RankContext) -> None:
    """The rank sleeps after a training whose first step was slow."""
    record_fault()
    time.sleep(FOREVER_S)


def recv(context: RankContext) -> None:
    """The rank receives a tensor that its partner never sends: the partner sleeps before it, or has no send."""
    if context.is_culprit and context.seed % 2 == 0:
        record_fault()
        time.sleep(FOREVER_S)
    elif context.is_culprit:
        record_fault()
        dist.recv(torch.empty(64), src=context.partner)
    elif context.is_partner and context.seed % 2 == 0:
        dist.recv(torch.empty(64), src=context.culprit)


def fifo(_: RankContext) -> None:
    path = Path(tempfile.mkdtemp(), "fifo")
    os.mkfifo(path)
    record_fault()
    path.read_bytes()


def full_disk(_: RankContext) -> None:
    path = Path(os.environ[DISK_VARIABLE], "checkpoint.pt")
    weights = torch.ones(1 << 20)
    record_fault(5)
    while True:
        try:
            torch.save(weights, path)
        except (OSError, RuntimeError):
            time.sleep(1)


def exit_early(context: RankContext) -> None:
    if context.seed % 2 == 0:
        threading.Thread(target=threading.Event().wait).start()
        record_fault()
    else:
        atexit.register(wait_at_exit)
    raise SystemExit(0)


def wait_at_exit() -> None:
    record_fault()
    time.sleep(FOREVER_S)


def outside(_: RankContext) -> None:
    record_fault()
    threading.Event().wait()


def compute(_: RankContext) -> None:
    value = 1
    record_fault(2)
    while value:
        value = value * 48271 % 2147483647


def kernel(_: RankContext) -> None:
    """A kernel of the GPU does not end."""
    torch.cuda._sleep(1 << 60)
    record_fault()
    torch.cuda.synchronize()


def run_wait(wait: Callable[[], None], context: RankContext) -> None:
    wait()


FAULTS: dict[str, Callable[[RankContext], None]] = {
    "sleep": sleep,
    "lock": lock,
    "sigstop": sigstop,
    "swallowed": swallowed,
    "loader": loader,
    "loader-queue": loader_queue,
    "gil": gil,
    "groups": groups,
    "size": size,
    "operation": operation,
    "recv": recv,
    "fifo": fifo,
    "full-disk": full_disk,
    "exit": exit_early,
    "outside": outside,
    "compute": compute,
    "kernel": kernel,
    "broadcast": broadcast,
    "new-group": new_group,
    "slow-start": first_step,
    "in-thread": sleep,
}
for _name, _wait in WAITS.items():
    FAULTS[_name] = partial(run_wait, _wait)
ALL_RANK_FAULTS = ("outside",)  # faults of all ranks
MULTI_RANK_FAULTS = ("groups", "recv", "broadcast", "new-group")  # faults that concern other ranks than the culprit


def is_affected(fault: str, context: RankContext) -> bool:
    if fault == "groups":
        return context.is_culprit or context.is_partner or context.seed % 2 == 1
    return context.is_culprit or fault in ALL_RANK_FAULTS or fault in MULTI_RANK_FAULTS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    outer_faults = ("slow", "throttled", "network", "silent-node")  # those that the matrix, or the loop, injects
    parser.add_argument("--fault", choices=[*FAULTS, *outer_faults], required=True)
    for name in ("rank", "step", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args()
    context = RankContext(args)

    def before_step(step: int) -> None:
        if step == args.step and args.fault in FAULTS and is_affected(args.fault, context):
            FAULTS[args.fault](context)

    slowdown = 1 + (60 + args.seed * 10 % 31) / 100 if args.fault == "slow" and context.is_culprit else 1
    if args.fault == "throttled" and context.is_culprit:
        Path(os.environ[QUOTA_VARIABLE]).write_text(str(os.getpid()), encoding="utf-8")
    work_s = WORK_S if args.fault == "throttled" else 0
    if args.fault == "slow-start":
        time.sleep(_SLOW_START_S)
        dist.all_reduce(torch.ones(4096))
    if args.fault == "in-thread":
        thread = threading.Thread(target=train, args=(before_step,))
        thread.start()
        thread.join()
    else:
        train(before_step, lambda: STEP_S * slowdown, work_s)


if __name__ == "__main__":
    main()
