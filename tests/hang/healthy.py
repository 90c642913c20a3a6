"""A training without a fault that looks like a hang for some seconds: `--style STYLE --seed N`.

No hang may be reported.
"""

import argparse
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

from tests.hang.training import STEP_S, start, train

SERVER_VARIABLE = "HANG_SERVER"  # port of a slow server on this machine
_ACTION_INTERVAL_STEPS = 20  # steps between checkpoints, evaluations, downloads
_CHUNK_BYTES = 1 << 20
_MAX_FILE_BYTES = 256 << 20


class SlowData(IterableDataset[torch.Tensor]):
    """Its workers compute 1 to 3 s for a batch."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            burn(self._rng.uniform(1, 3))
            yield torch.zeros(8)


def burn(seconds: float) -> None:
    """Compute for some seconds of wall-clock time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        sum(number * number for number in range(10_000))


def write_checkpoint(seconds: float) -> None:
    """Write and sync for some seconds, in a file that does not grow beyond a limit."""
    deadline = time.monotonic() + seconds
    chunk = os.urandom(_CHUNK_BYTES)
    with tempfile.TemporaryFile() as file:
        while time.monotonic() < deadline:
            for _ in range(8):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
            if file.tell() >= _MAX_FILE_BYTES:
                file.seek(0)


def compile_program(seconds: float) -> None:
    """Compute in this process, then in a child, as a compiler does."""
    burn(seconds / 2)
    folder = Path(__file__).parents[2]
    code = f"from tests.hang.healthy import burn; burn({seconds / 2})"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=folder)


def download(_: float) -> None:
    """Receive a file at about 200 kB/s for 10 s."""
    with socket.create_connection(("127.0.0.1", int(os.environ[SERVER_VARIABLE]))) as connection:
        while connection.recv(1 << 16):
            pass


def act_on_rank_zero(action: Callable[[float], None], seconds: tuple[float, float], rng: random.Random) -> None:
    """Train; every 20 steps rank 0 works while the others wait for it in a barrier."""

    def before_step(step: int) -> None:
        if step % _ACTION_INTERVAL_STEPS == _ACTION_INTERVAL_STEPS - 1:
            if dist.get_rank() == 0:
                action(rng.uniform(*seconds))
            dist.barrier()

    train(before_step)


def load_slowly(rng: random.Random) -> None:
    batches = iter(DataLoader(SlowData(rng), batch_size=None, num_workers=1))

    def load(_: int) -> None:
        next(batches)

    train(load)


def compile_first(seed: int) -> None:
    """Odd seeds compile in rank 0 alone, while the others wait in their first collective."""
    if seed % 2 == 0 or dist.get_rank() == 0:
        compile_program(20)
    train(lambda _: None)


def step_unevenly(rng: random.Random) -> None:
    train(lambda _: None, lambda: rng.choice((STEP_S, rng.uniform(STEP_S, 2))))


STYLES: dict[str, Callable[[int, random.Random], None]] = {
    "plain": lambda seed, rng: train(lambda _: None),
    "checkpoint": lambda seed, rng: act_on_rank_zero(write_checkpoint, (8, 15), rng),
    "evaluation": lambda seed, rng: act_on_rank_zero(burn, (10, 20), rng),
    "uneven": lambda seed, rng: step_unevenly(rng),
    "compile": lambda seed, rng: compile_first(seed),
    "slow-loader": lambda seed, rng: load_slowly(rng),
    "download": lambda seed, rng: act_on_rank_zero(download, (10, 10), rng),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--style", choices=STYLES, required=True)
    parser.add_argument("--seed", type=int, required=True)
    args = parser.parse_args()
    rank, _ = start()
    STYLES[args.style](args.seed, random.Random(args.seed * 1000 + rank))


if __name__ == "__main__":
    main()
