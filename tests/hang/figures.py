"""Rows of the matrix's table, and the figures that all rows give together."""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from tests.hang.cells import LATE, STRAGGLERS, Cell, right
from tests.hang.judge import Judge, Verdict
from torchyard.diagnosis.hang.stragglers import describe_straggler

_LINE = re.compile(r":(\d+)\)")


class Truth(NamedTuple):
    """When the fault began, in seconds since the cell's start, and the true lines of the culprits."""

    at: float
    lines: tuple[int, ...]


class Row(NamedTuple):
    """The result of a cell. `told_s`: from the fault's moment; infinite if nothing was told."""

    cell: Cell
    told_s: float
    said: str = ""
    has_class: bool = False
    has_ranks: bool = False
    has_line: bool | None = None
    wrong: str = ""

    def __str__(self) -> str:
        told = f"{self.told_s:5.1f}" if math.isfinite(self.told_s) else "  -  "
        marks = [" -" if mark is None else ("ok" if mark else "NO") for mark in self[3:6]]
        if not self.cell.hangs:
            marks = [" -"] * 3
        end = f"WRONG: {self.wrong}" if self.wrong else self.said
        return f"{self.cell.name:<13}{self.cell.ranks:>3}x{self.cell.nodes} {told} {' '.join(marks)} {end[:300]}"


HEAD = f"{'class':<13}{'ranks':>5} {'told':>5} cl rk li"


class Figures(NamedTuple):
    """What the rows say together."""

    hangs: int
    others: int
    median_s: float
    p95_s: float
    ranks: float
    classes: float
    lines: float
    wrong: float
    stragglers: float

    def list_misses(self) -> list[str]:
        """The figures that are not as good as wanted."""
        found = {
            "told, median <= 5 s": not self.median_s > 5,
            "told, p95 <= 15 s": not self.p95_s > 15,
            "right ranks >= 98 %": self.ranks >= 0.98,
            "right classes >= 95 %": self.classes >= 0.95,
            "right lines >= 90 %": self.lines >= 0.90,
            "wrong <= 1 %": self.wrong <= 0.01,
            "stragglers named >= 90 %": self.stragglers >= 0.9,
        }
        return [name for name, is_good in found.items() if not is_good]

    def __str__(self) -> str:
        return (
            f"{self.hangs} hangs, {self.others} jobs without one: told after {self.median_s:.1f} s (median) and "
            f"{self.p95_s:.1f} s (p95), {self.ranks:.1%} right ranks, {self.classes:.1%} right classes, "
            f"{self.lines:.1%} right lines, {self.wrong:.1%} wrong, {self.stragglers:.0%} of stragglers named"
        )


def judge_row(cell: Cell, truth: Truth | None, judge: Judge) -> Row:
    """The row of a cell. The first verdict counts; a later one may not be wrong either."""
    verdicts = judge.verdicts
    if not cell.hangs:
        return _judge_going(cell, judge)
    if truth is None:
        return Row(cell, math.inf, wrong="the fault has not struck")
    if not verdicts:
        return Row(cell, math.inf, said="not told")
    wanted, first = right(cell), next((each for each in verdicts if each.kind != "unknown"), verdicts[0])
    wrong = next((_quote(each) for each in verdicts if _is_wrong(cell, truth, each)), "")
    line = _LINE.search(first.where)
    has_line = bool(line and int(line[1]) in truth.lines) if wanted.has_line else None
    right_class, right_ranks = first.kind in wanted.kinds, wanted.has_right_ranks(first.ranks)
    return Row(cell, first.at - truth.at, first.sentence, right_class, right_ranks, has_line, wrong)


def _judge_going(cell: Cell, judge: Judge) -> Row:
    """The row of a job that goes on: nothing hangs, and a rank that is slower than the others may be named."""
    wrong, late = [_quote(each) for each in judge.verdicts[:1]], judge.straggler
    said = describe_straggler(late) if late else "no straggler" if cell.name in STRAGGLERS else ""
    if late and cell.name in STRAGGLERS and late.rank != cell.culprit:
        wrong.append(f"not rank {cell.culprit}: {said}")
    is_named = bool(late and late.rank == cell.culprit)
    return Row(cell, math.inf, said=said, has_ranks=is_named, wrong="; ".join(wrong))


def _is_wrong(cell: Cell, truth: Truth, verdict: Verdict) -> bool:
    """Whether a verdict is not right and not unknown."""
    wanted = right(cell)
    if verdict.at < truth.at:
        return True
    if verdict.ranks and not wanted.has_right_ranks(verdict.ranks):
        return True
    return verdict.kind != "unknown" and verdict.kind not in wanted.kinds


def _quote(verdict: Verdict) -> str:
    return f"{verdict.at:.1f} s: {verdict.kind} {list(verdict.ranks)} {verdict.where}: {verdict.sentence}"


def sum_up(rows: Sequence[Row]) -> Figures:
    """The figures of all rows; a hang that was not told has no right rank, class or line.

    When a hang is told that can be told late only does not count; what is told of it does.
    """
    hangs = [row for row in rows if row.cell.hangs]
    told = sorted(row.told_s for row in hangs if row.cell.name not in LATE)
    lines = [row.has_line or False for row in hangs if right(row.cell).has_line]
    return Figures(
        len(hangs),
        len(rows) - len(hangs),
        quantile(told, 0.5),
        quantile(told, 0.95),
        _share([row.has_ranks for row in hangs]),
        _share([row.has_class for row in hangs]),
        _share(lines),
        1 - _share([not row.wrong for row in rows]),
        _share([row.has_ranks for row in rows if row.cell.name in STRAGGLERS]),
    )


def tabulate_kinds(rows: Sequence[Row]) -> list[str]:
    """A line for each class: its cells, the median and the longest time, and what share was right."""
    names = dict.fromkeys(row.cell.name for row in rows if row.cell.hangs)
    lines = (
        [f"{'class':<13}{'cells':>6}{'median':>8}{'longest':>9}{'class':>7}{'ranks':>7}{'line':>6}"] if names else []
    )
    for name in names:
        its = [row for row in rows if row.cell.name == name]
        told = sorted(row.told_s for row in its)
        marks = [[bool(row[place]) for row in its if row[place] is not None] for place in (3, 4, 5)]
        shares = [f"{_share(each):.0%}" if each else "-" for each in marks]
        times = f"{quantile(told, 0.5):>8.1f}{told[-1]:>9.1f}"
        lines.append(f"{name:<13}{len(its):>6}{times}{shares[0]:>7}{shares[1]:>7}{shares[2]:>6}")
    return lines


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below or at which this share of the values is (nearest rank)."""
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)] if ordered else math.nan


def _share(marks: Sequence[bool]) -> float:
    return sum(marks) / len(marks) if marks else 1.0
