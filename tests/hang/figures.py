"""Rows of the matrix's table, and the figures that all rows give together."""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from tests.hang.cells import REPORTED_LATE, STRAGGLERS, Cell, get_expected_verdict
from tests.hang.judge import Verdict, VerdictRecorder
from torchyard.diagnosis.hang.stragglers import describe_straggler

_LINE = re.compile(r":(\d+)\)")


class Truth(NamedTuple):
    """When the fault began, in seconds since the cell's start, and the true lines of the culprits."""

    time_s: float
    lines: tuple[int, ...]


class Row(NamedTuple):
    """The result of a cell. `told_s`: from the fault's moment; infinite if nothing was told."""

    cell: Cell
    reported_after_s: float
    message: str = ""
    has_class: bool = False
    has_ranks: bool = False
    has_line: bool | None = None
    problem: str = ""

    def __str__(self) -> str:
        reported = f"{self.reported_after_s:5.1f}" if math.isfinite(self.reported_after_s) else "  -  "
        marks = [" -" if mark is None else ("ok" if mark else "NO") for mark in self[3:6]]
        if not self.cell.is_hang:
            marks = [" -"] * 3
        result = f"WRONG: {self.problem}" if self.problem else self.message
        return f"{self.cell.name:<13}{self.cell.ranks:>3}x{self.cell.nodes} {reported} {' '.join(marks)} {result[:300]}"


HEADER = f"{'class':<13}{'ranks':>5} {'told':>5} cl rk li"


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
        checks = {
            "told, median <= 5 s": not self.median_s > 5,
            "told, p95 <= 15 s": not self.p95_s > 15,
            "right ranks >= 98 %": self.ranks >= 0.98,
            "right classes >= 95 %": self.classes >= 0.95,
            "right lines >= 90 %": self.lines >= 0.90,
            "wrong <= 1 %": self.wrong <= 0.01,
            "stragglers named >= 90 %": self.stragglers >= 0.9,
        }
        return [name for name, is_good in checks.items() if not is_good]

    def __str__(self) -> str:
        return (
            f"{self.hangs} hangs, {self.others} jobs without one: told after {self.median_s:.1f} s (median) and "
            f"{self.p95_s:.1f} s (p95), {self.ranks:.1%} right ranks, {self.classes:.1%} right classes, "
            f"{self.lines:.1%} right lines, {self.wrong:.1%} wrong, {self.stragglers:.0%} of stragglers named"
        )


def evaluate_row(cell: Cell, truth: Truth | None, recorder: VerdictRecorder) -> Row:
    """The row of a cell. The first verdict counts; a later one may not be wrong either."""
    verdicts = recorder.verdicts
    if not cell.is_hang:
        return _evaluate_healthy_job(cell, recorder)
    if truth is None:
        return Row(cell, math.inf, problem="the fault has not struck")
    if not verdicts:
        return Row(cell, math.inf, message="not told")
    expected, first = (
        get_expected_verdict(cell),
        next((verdict for verdict in verdicts if verdict.kind != "unknown"), verdicts[0]),
    )
    problem = next((_quote(verdict) for verdict in verdicts if _is_wrong(cell, truth, verdict)), "")
    line = _LINE.search(first.location)
    has_line = bool(line and int(line[1]) in truth.lines) if expected.has_line else None
    has_class, has_ranks = first.kind in expected.kinds, expected.allows_ranks(first.ranks)
    return Row(cell, first.time_s - truth.time_s, first.sentence, has_class, has_ranks, has_line, problem)


def _evaluate_healthy_job(cell: Cell, recorder: VerdictRecorder) -> Row:
    """The row of a job that goes on: nothing hangs, and a rank that is slower than the others may be named."""
    problems, straggler = [_quote(verdict) for verdict in recorder.verdicts[:1]], recorder.straggler
    straggler_text = describe_straggler(straggler) if straggler else "no straggler" if cell.name in STRAGGLERS else ""
    if straggler and cell.name in STRAGGLERS and straggler.rank != cell.culprit:
        problems.append(f"not rank {cell.culprit}: {straggler_text}")
    is_named = bool(straggler and straggler.rank == cell.culprit)
    return Row(cell, math.inf, message=straggler_text, has_ranks=is_named, problem="; ".join(problems))


def _is_wrong(cell: Cell, truth: Truth, verdict: Verdict) -> bool:
    """Whether a verdict is not right and not unknown."""
    expected = get_expected_verdict(cell)
    if verdict.time_s < truth.time_s:
        return True
    if verdict.ranks and not expected.allows_ranks(verdict.ranks):
        return True
    return verdict.kind != "unknown" and verdict.kind not in expected.kinds


def _quote(verdict: Verdict) -> str:
    return f"{verdict.time_s:.1f} s: {verdict.kind} {list(verdict.ranks)} {verdict.location}: {verdict.sentence}"


def summarize(rows: Sequence[Row]) -> Figures:
    """The figures of all rows; a hang that was not told has no right rank, class or line.

    When a hang is told that can be told late only does not count; what is told of it does.
    """
    hangs = [row for row in rows if row.cell.is_hang]
    report_times = sorted(row.reported_after_s for row in hangs if row.cell.name not in REPORTED_LATE)
    lines = [row.has_line or False for row in hangs if get_expected_verdict(row.cell).has_line]
    return Figures(
        len(hangs),
        len(rows) - len(hangs),
        quantile(report_times, 0.5),
        quantile(report_times, 0.95),
        _share([row.has_ranks for row in hangs]),
        _share([row.has_class for row in hangs]),
        _share(lines),
        1 - _share([not row.problem for row in rows]),
        _share([row.has_ranks for row in rows if row.cell.name in STRAGGLERS]),
    )


def tabulate_kinds(rows: Sequence[Row]) -> list[str]:
    """A line for each class: its cells, the median and the longest time, and what share was right."""
    names = dict.fromkeys(row.cell.name for row in rows if row.cell.is_hang)
    lines = (
        [f"{'class':<13}{'cells':>6}{'median':>8}{'longest':>9}{'class':>7}{'ranks':>7}{'line':>6}"] if names else []
    )
    for name in names:
        class_rows = [row for row in rows if row.cell.name == name]
        report_times = sorted(row.reported_after_s for row in class_rows)
        marks = [[bool(row[index]) for row in class_rows if row[index] is not None] for index in (3, 4, 5)]
        shares = [f"{_share(values):.0%}" if values else "-" for values in marks]
        times = f"{quantile(report_times, 0.5):>8.1f}{report_times[-1]:>9.1f}"
        lines.append(f"{name:<13}{len(class_rows):>6}{times}{shares[0]:>7}{shares[1]:>7}{shares[2]:>6}")
    return lines


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below or at which this share of the values is (nearest rank)."""
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)] if ordered else math.nan


def _share(marks: Sequence[bool]) -> float:
    return sum(marks) / len(marks) if marks else 1.0
