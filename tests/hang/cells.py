"""The cells of the matrix: which rank of which job has which fault, and the verdict that is expected."""

import random
from collections.abc import Sequence
from typing import Literal, NamedTuple

from torchyard.model.hang import HangClass

Backend = Literal["gloo", "nccl"]
RANKS = (4, 4, 8, 4, 6, 12, 4, 16)  # of the seeds, in turn
HANGS: dict[str, tuple[HangClass, ...]] = {
    "sleep": ("missing-rank",),
    "lock": ("missing-rank",),
    "sigstop": ("stopped",),
    "swallowed": ("missing-rank",),
    "loader": ("data-loader",),
    "loader-queue": ("data-loader", "missing-rank"),
    "gil": ("gil", "compute"),
    "groups": ("deadlock-between-groups",),
    "size": ("collective-mismatch",),
    "operation": ("collective-mismatch",),
    "recv": ("missing-rank",),
    "fifo": ("storage",),
    "full-disk": ("storage",),
    "network": ("network",),
    "exit": ("missing-rank",),
    "outside": ("all-waiting-outside",),
    "compute": ("compute",),
    "broadcast": ("collective-mismatch",),
    "new-group": ("collective-mismatch", "missing-rank"),
    "slow-start": ("missing-rank",),
    "in-thread": ("missing-rank",),
    "before-torch": ("missing-rank",),
    "silent-node": ("missing-rank",),
    "lock-beside-thread": ("missing-rank",),
    "spin": ("missing-rank", "compute"),
    "poll": ("missing-rank",),
    "child": ("missing-rank",),
    "child-output": ("missing-rank",),
    "file-lock": ("missing-rank", "storage"),
    "file-lock-blocking": ("missing-rank", "storage"),
    "pipe": ("storage", "missing-rank"),
    "silent-server": ("network",),
    "http": ("network",),
    "queue": ("missing-rank",),
    "condition": ("missing-rank",),
    "event-loop": ("missing-rank",),
    "pool": ("missing-rank",),
    "child-join": ("missing-rank",),
    "semaphore": ("missing-rank",),
    "failed-thread": ("missing-rank",),
    "freezer": ("stopped",),
    "hook": ("missing-rank",),
    "kernel": ("compute",),
}
STRAGGLERS = ("slow", "throttled")
# Reported only after minutes, because an evaluation looks like it, because a healthy rank is silent for a minute, or
# because the other ranks first import torch.
REPORTED_LATE = ("compute", "spin", "kernel", "silent-node", "before-torch")
STYLES = (
    *("plain", "uneven", "compile", "slow-loader"),
    *("checkpoint", "evaluation", "download", "evaluate-download", "remote-poll", "save", "child-process"),
    *("short-children", "process-pool", "thread-pool", "json", "pickle", "regex", "sort", "garbage", "svd", "hash"),
    *("archive", "database", "mapped-file", "back-off"),
    *("ddp", "ddp-workers", "ddp-accumulate", "ddp-evaluate", "fsdp", "distributed-save", "torch-compile"),
    *(
        "background-save",
        "thread-training",
        "subgroups",
        "late-group",
        "pipeline",
        "objects",
        "prepare-once",
        "normal-end",
    ),
    *("accelerate", "lightning", "transformers"),
)
DEVICE_STYLES = ("blocking-wait", "device-thread", "cuda-graph", "mixed-precision")
DEVICE_ONLY = ("kernel", *DEVICE_STYLES)  # on a GPU alone
ROOT_ONLY = ("full-disk", "network", "throttled", "freezer")  # a small file system, network namespaces, control groups
NAMES = (*HANGS, *STRAGGLERS, *STYLES, *DEVICE_STYLES)
# What is not visible with NCCL: the root of a broadcast that has returned, and whose bytes arrive while a rank polls.
UNSEEN_WITH_NCCL = ("broadcast", "poll", "file-lock")
_WITHOUT_LINE = ("sigstop", "network", "outside", "silent-node", "freezer")
_NETWORK_NODES = 3  # of two nodes, either one may be the isolated one


class Cell(NamedTuple):
    """One job: its fault or style, its size, the seed that draws the rest, and the backend with which it trains.

    With NCCL all ranks share one GPU, each on a node of its own.
    """

    name: str
    ranks: int
    nodes: int
    seed: int
    backend: Backend = "gloo"

    def __str__(self) -> str:
        backend = f"-{self.backend}" if self.backend != "gloo" else ""
        return f"{self.name}-{self.ranks}x{self.nodes}-{self.seed}{backend}"

    @property
    def is_hang(self) -> bool:
        return self.name in HANGS

    @property
    def is_reported_late(self) -> bool:
        """Whether the rank works, as far as can be measured: half of the cells of `gil` burn a processor."""
        return self.name in REPORTED_LATE or (self.name == "gil" and self.seed % 2 == 0)

    @property
    def culprit(self) -> int:
        return self._draw().randrange(self.ranks)

    @property
    def step(self) -> int:
        """The step at which the fault strikes."""
        return self._draw().randrange(10, 60)

    def _draw(self) -> random.Random:
        return random.Random(f"{self.name}/{self.ranks}/{self.seed}")

    def get_node(self, rank: int) -> int:
        return rank * self.nodes // self.ranks


class ExpectedVerdict(NamedTuple):
    """A correct verdict: one of these classes, all of `required_ranks` and none but `allowed_ranks`, and a true line.

    If all ranks do the same, none of them is a culprit, and `allowed_ranks` is empty. has_line: whether it has a line.
    """

    kinds: tuple[HangClass, ...]
    required_ranks: frozenset[int]
    allowed_ranks: frozenset[int]
    has_line: bool

    def allows_ranks(self, ranks: Sequence[int]) -> bool:
        return bool(ranks) == bool(self.allowed_ranks) and self.required_ranks <= set(ranks) <= self.allowed_ranks


def get_expected_verdict(cell: Cell) -> ExpectedVerdict:
    """The expected verdict on a cell that hangs."""
    culprit = cell.culprit
    partner = (culprit + 1) % cell.ranks
    all_ranks = frozenset(range(cell.ranks))
    required_ranks = frozenset({culprit})
    allowed_ranks = required_ranks
    if cell.name == "groups" and cell.seed % 2 == 0:
        required_ranks = frozenset()  # of two ranks, either one is a correct culprit
        allowed_ranks = frozenset({culprit, partner})
    elif cell.name == "groups":
        allowed_ranks = all_ranks  # of all ranks, one differs from all others
    elif cell.name == "recv" and cell.seed % 2:
        allowed_ranks = all_ranks  # its partner waits for all ranks, among them the culprit
    elif cell.name in ("broadcast", "new-group"):
        allowed_ranks = all_ranks
    elif cell.name in ("network", "silent-node"):
        isolated_node = cell.get_node(culprit)
        required_ranks = frozenset()
        allowed_ranks = frozenset(rank for rank in all_ranks if cell.get_node(rank) == isolated_node)
    elif cell.name == "outside":
        required_ranks = frozenset()
        allowed_ranks = frozenset()
    kinds = HANGS[cell.name]
    if cell.name == "recv" and cell.seed % 2:
        kinds = (*kinds, "collective-mismatch", "deadlock-between-groups")
    has_line = cell.name not in _WITHOUT_LINE and not _is_without_line(cell)
    return ExpectedVerdict(kinds, required_ranks, allowed_ranks, has_line)


def _is_without_line(cell: Cell) -> bool:
    """Whether no line is true: of a culprit that waits for a thread at its exit, that is one of several in a ring, or
    whose call has returned while it is pending, as NCCL's do.
    """
    if cell.backend == "nccl" and cell.name == "operation":
        return True
    return (cell.name == "exit" and cell.seed % 2 == 0) or (cell.name == "recv" and cell.seed % 2 == 1)


def list_cells(
    names: Sequence[str], seeds: Sequence[int], ranks: Sequence[int], backend: Backend = "gloo"
) -> list[Cell]:
    """The cells of these classes and seeds; with gloo each third job has two nodes or four."""
    cells = []
    for seed in seeds:
        for name in names:
            rank_count = ranks[seed % len(ranks)]
            nodes = _count_nodes(name, seed, rank_count)
            if backend == "nccl":
                nodes = max(nodes, rank_count)
                rank_count = nodes
            cells.append(Cell(name, max(rank_count // nodes, 1) * nodes, nodes, seed, backend))
    return cells


def _count_nodes(name: str, seed: int, rank_count: int) -> int:
    if name in ("network", "silent-node"):
        return _NETWORK_NODES
    if seed % 3 != 1:
        return 1
    return 4 if rank_count >= 8 else 2
