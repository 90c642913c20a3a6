"""A training in which one rank has a fault: `--fault CLASS --rank R --step S --seed N`.

The instant before a fault begins, its rank writes the moment and the true lines to a file (training.tell).
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
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

from tests.hang.training import STEP_S, start, tell, train

FOREVER_S = 100_000
DISK_VARIABLE = "HANG_DISK"  # a small file system, for full-disk
QUOTA_VARIABLE = "HANG_QUOTA"  # the list of processes of a group with a CPU quota, for throttled
WORK_S = 0.01  # of processor time in a step, for throttled


class Stage:
    """Who is who in this rank's process."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.seed: int = asked.seed
        self.culprit: int = asked.rank
        self.rank, self.world = start()
        self.partner = (self.culprit + 1) % self.world
        self.is_culprit, self.is_partner = self.rank == self.culprit, self.rank == self.partner
        members = [self.culprit, self.partner] if asked.seed % 2 == 0 else list(range(self.world))
        self.groups = [dist.new_group(sorted(members)) for _ in range(2)] if asked.fault == "groups" else []


class BlockedData(IterableDataset[torch.Tensor]):
    """Its worker gives some batches, and then waits for a lock that nobody releases."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from torch.zeros(4, 8)
        threading.Event().wait()


def sleep(_: Stage) -> None:
    tell()
    time.sleep(FOREVER_S)


def lock(_: Stage) -> None:
    guard = threading.Lock()
    guard.acquire()
    tell()
    guard.acquire()


def sigstop(stage: Stage) -> None:
    """The rank stops itself, or is stopped wherever it is: perhaps in a collective."""
    tell()
    if stage.seed % 2 == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        subprocess.Popen(["sh", "-c", f"sleep 0.1; kill -STOP {os.getpid()}"])


def swallowed(stage: Stage) -> None:
    """The error of a thread is swallowed, and with it the only call that would have set the event."""
    ready = threading.Event()
    waits: dict[str, float] = {}

    def prepare() -> None:
        with contextlib.suppress(KeyError):
            time.sleep(waits["loading"])
            ready.set()

    helper = threading.Thread(target=prepare, daemon=True)
    helper.start()
    if stage.seed % 2 == 0:
        tell()
        ready.wait()
    else:
        keeper = threading.Thread(target=ready.wait, daemon=True)
        keeper.start()
        tell()
        keeper.join()


def loader(stage: Stage) -> None:
    data = iter(DataLoader(BlockedData(), batch_size=None, num_workers=1 + stage.seed % 2))
    for _ in range(4):
        next(data)
    tell(2)
    while True:
        next(data)


def loader_queue(_: Stage) -> None:
    batches: Any = multiprocessing.get_context("fork").Queue()
    feeder = multiprocessing.get_context("fork").Process(target=time.sleep, args=(FOREVER_S,), daemon=True)
    feeder.start()
    tell()
    batches.get()


def gil(stage: Stage) -> None:
    if stage.seed % 2 == 0:
        tell()
        re.match(r"(a+)+$", "a" * 64 + "b")
    else:
        libc = ctypes.PyDLL(None)
        tell()
        libc.sleep(FOREVER_S)


def groups(stage: Stage) -> None:
    first, second = stage.groups if stage.is_culprit else reversed(stage.groups)
    ones = torch.ones(64)
    tell()
    dist.all_reduce(ones, group=first)
    dist.all_reduce(ones, group=second)


def size(stage: Stage) -> None:
    """A rank with another tensor. Of two sizes of one operation gloo makes an error, so the operation differs, too."""
    if stage.seed % 2 == 0:
        tell()
        dist.gather(torch.ones(64), [torch.empty(64) for _ in range(stage.world)], dst=stage.culprit)
    else:
        tell()
        dist.all_gather([torch.empty(64) for _ in range(stage.world)], torch.ones(64))


def operation(stage: Stage) -> None:
    ones = torch.ones(4096)
    if stage.seed % 3 == 0:
        tell()
        dist.all_gather([torch.empty(4096) for _ in range(stage.world)], ones)
    elif stage.seed % 3 == 1:
        tell()
        dist.barrier()
    else:
        tell()
        dist.broadcast(ones, src=stage.partner)


def recv(stage: Stage) -> None:
    """The rank receives what its partner never sends: the partner sleeps before it, or has no send at all."""
    if stage.is_culprit and stage.seed % 2 == 0:
        tell()
        time.sleep(FOREVER_S)
    elif stage.is_culprit:
        tell()
        dist.recv(torch.empty(64), src=stage.partner)
    elif stage.is_partner and stage.seed % 2 == 0:
        dist.recv(torch.empty(64), src=stage.culprit)


def fifo(_: Stage) -> None:
    path = Path(tempfile.mkdtemp(), "fifo")
    os.mkfifo(path)
    tell()
    path.read_bytes()


def full_disk(_: Stage) -> None:
    path = Path(os.environ[DISK_VARIABLE], "checkpoint.pt")
    weights = torch.ones(1 << 20)
    tell(5)
    while True:
        try:
            torch.save(weights, path)
        except (OSError, RuntimeError):
            time.sleep(1)


def leave(stage: Stage) -> None:
    if stage.seed % 2 == 0:
        threading.Thread(target=threading.Event().wait).start()
        tell()
    else:
        atexit.register(wait_at_exit)
    raise SystemExit(0)


def wait_at_exit() -> None:
    tell()
    time.sleep(FOREVER_S)


def outside(_: Stage) -> None:
    tell()
    threading.Event().wait()


def compute(_: Stage) -> None:
    value = 1
    tell(2)
    while value:
        value = value * 48271 % 2147483647


FAULTS: dict[str, Callable[[Stage], None]] = {
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
    "exit": leave,
    "outside": outside,
    "compute": compute,
}
OF_ALL = ("outside",)  # faults of all ranks
OF_MORE = ("groups", "recv")  # faults that concern other ranks than the culprit, too


def strikes(fault: str, stage: Stage) -> bool:
    if fault == "groups":
        return stage.is_culprit or stage.is_partner or stage.seed % 2 == 1
    return stage.is_culprit or fault in OF_ALL or fault in OF_MORE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=[*FAULTS, "slow", "throttled", "network"], required=True)
    for name in ("rank", "step", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    asked = parser.parse_args()
    stage = Stage(asked)

    def before_step(step: int) -> None:
        if step == asked.step and asked.fault in FAULTS and strikes(asked.fault, stage):
            FAULTS[asked.fault](stage)

    slow = 1 + (60 + asked.seed * 10 % 31) / 100 if asked.fault == "slow" and stage.is_culprit else 1
    if asked.fault == "throttled" and stage.is_culprit:
        Path(os.environ[QUOTA_VARIABLE]).write_text(str(os.getpid()), encoding="utf-8")
    work_s = WORK_S if asked.fault == "throttled" else 0
    train(before_step, lambda: STEP_S * slow, work_s)


if __name__ == "__main__":
    main()
