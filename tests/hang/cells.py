"""The cells of the matrix: which fault strikes which rank of which job, and what must be told of it."""

import random
from collections.abc import Sequence
from typing import NamedTuple

from torchyard.model.hang import HangClass

RANKS = (4, 4, 8, 4, 6, 12, 4, 16)  # of the seeds, in turn
HANGS: dict[str, tuple[HangClass, ...]] = {
    "sleep": ("missing-rank",),
    "lock": ("missing-rank",),
    "sigstop": ("stopped",),
    "swallowed": ("missing-rank",),
    "loader": ("data-loader",),
    "loader-queue": ("data-loader", "missing-rank"),
    "gil": ("gil",),
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
}
STRAGGLERS = ("slow", "throttled")
REPORTED_LATE = ("compute",)  # told only after five minutes: an evaluation looks like that
STYLES = ("plain", "checkpoint", "evaluation", "uneven", "compile", "slow-loader", "download")
ROOT_ONLY = ("full-disk", "network", "throttled")  # need root: a small file system, network namespaces, a CPU quota
NAMES = (*HANGS, *STRAGGLERS, *STYLES)
_WITHOUT_LINE = ("sigstop", "network", "outside")
_NETWORK_NODES = 3  # of two, nobody can say which one is cut off


class Cell(NamedTuple):
    """One job: its fault or style, its size, and the seed that draws the rest."""

    name: str
    ranks: int
    nodes: int
    seed: int

    def __str__(self) -> str:
        return f"{self.name}-{self.ranks}x{self.nodes}-{self.seed}"

    @property
    def is_hang(self) -> bool:
        return self.name in HANGS

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
    """A right verdict: one of these classes, ranks among `may` and with all of `must`, a true line if it has one.

    Where all ranks do the same, none of them is to blame: then `may` is empty.
    """

    kinds: tuple[HangClass, ...]
    required_ranks: frozenset[int]
    allowed_ranks: frozenset[int]
    has_line: bool

    def allows_ranks(self, ranks: Sequence[int]) -> bool:
        return bool(ranks) == bool(self.allowed_ranks) and self.required_ranks <= set(ranks) <= self.allowed_ranks


def get_expected_verdict(cell: Cell) -> ExpectedVerdict:
    """What must be told of a cell that hangs."""
    culprit, partner = cell.culprit, (cell.culprit + 1) % cell.ranks
    all_ranks = frozenset(range(cell.ranks))
    required_ranks = frozenset({culprit})
    allowed_ranks = required_ranks
    if cell.name == "groups":
        # Of two ranks, none is more guilty than the other; of all ranks, one differs from all others.
        required_ranks, allowed_ranks = (
            (frozenset(), frozenset({culprit, partner})) if cell.seed % 2 == 0 else (required_ranks, all_ranks)
        )
    elif cell.name == "recv" and cell.seed % 2:
        allowed_ranks = all_ranks  # its partner waits for all ranks, among them the culprit
    elif cell.name == "network":
        isolated_node = cell.get_node(culprit)
        required_ranks, allowed_ranks = (
            frozenset(),
            frozenset(rank for rank in all_ranks if cell.get_node(rank) == isolated_node),
        )
    elif cell.name == "outside":
        required_ranks = allowed_ranks = frozenset()
    kinds = HANGS[cell.name]
    if cell.name == "recv" and cell.seed % 2:
        kinds = (*kinds, "collective-mismatch", "deadlock-between-groups")
    return ExpectedVerdict(
        kinds, required_ranks, allowed_ranks, cell.name not in _WITHOUT_LINE and not _is_without_line(cell)
    )


def _is_without_line(cell: Cell) -> bool:
    """Whether the culprit waits for a thread at its exit, in no line of the program; or is one of several in a ring."""
    return (cell.name == "exit" and cell.seed % 2 == 0) or (cell.name == "recv" and cell.seed % 2 == 1)


def list_cells(names: Sequence[str], seeds: Sequence[int], ranks: Sequence[int]) -> list[Cell]:
    """The cells of these classes and seeds; each third job has two nodes or four."""
    cells = []
    for seed in seeds:
        for name in names:
            rank_count = ranks[seed % len(ranks)]
            nodes = _NETWORK_NODES if name == "network" else 1 if seed % 3 != 1 else 4 if rank_count >= 8 else 2
            cells.append(Cell(name, max(rank_count // nodes, 1) * nodes, nodes, seed))
    return cells
