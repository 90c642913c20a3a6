"""The output of training programs and benchmarks: recorded, posted and shortened."""

from pathlib import Path
from typing import Any

from torchyard.model.run import Row

TIMING_COLUMNS = "     time   algbw   busbw #wrong"
HEADER = "#       size         count      type   redop    root" + TIMING_COLUMNS * 2
ROW = (
    "   536870912     134217728     float     sum      -1   2984.6  179.88  356.01      0  2979.7  180.18  356.6      0"
)
MNIST = [
    "{'batch_size': 256,",
    " 'epochs': 2,",
    "[init] == local rank: 0, global rank: 0, world size: 8 ==",
    "prepare",
    "prepare seconds: 3.25",
    "training",
    "Train Epoch: 0 [0/30]\tloss=2.3100",
    "Train Epoch: 0 [10/30]\tloss=0.9000",
    "Test Epoch: 0 [0/40]\tacc=88.0000",
    "Test Epoch: 0, acc=87.1200",
    "test acc: 87.12, best acc: 87.12",
    "Train Epoch: 1 [0/30]\tloss=0.5100",
    "Test Epoch: 1, acc=86.5000",
    "training seconds: 30.5",
    "best_acc: 87.12",
]


def load_posted_log(name: str) -> list[str]:
    return (Path(__file__).parents[1] / "logs" / f"posted-{name}.txt").read_bytes().decode().split("\n")


def select_columns(rows: tuple[Row, ...], *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(row.get(key) for key in keys) for row in rows]
