"""Rows of the matrix's table, and the figures over all rows."""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from tests.hang.cells import STRAGGLERS, Cell, get_expected_verdict
from tests.hang.judge import Verdict, VerdictRecorder
from tests.tools.matrix import render_table
from torchyard.diagnosis.hang.stragglers import describe_straggler

_LINE = re.compile(r":(\d+)\)")


class Truth(NamedTuple):
    """When the fault started, in seconds since the cell's start, and the true lines of the culprits."""

    time_s: float
    lines: tuple[int, ...]


class Row(NamedTuple):
    """The result of a cell.

    reported_after_s: seconds from the fault to the first verdict; infinite if there was none.
    has_line: None if a correct verdict has no line.
    problem: a wrong verdict, as text; empty if there was none.
    restarted_at_s: when `on_hang: restart` would have ended a healthy job's attempt; None if never.
    """

    cell: Cell
    reported_after_s: float
    message: str = ""
    has_class: bool = False
    has_ranks: bool = False
    has_line: bool | None = None
    problem: str = ""
    restarted_at_s: float | None = None

    def __str__(self) -> str:
        reported = f"{self.reported_after_s:5.1f}" if math.isfinite(self.reported_after_s) else "  -  "
        marks = [" -"] * 3
        if self.cell.is_hang:
            marks = [_format_mark(mark) for mark in (self.has_class, self.has_ranks, self.has_line)]
        result = f"WRONG: {self.problem}" if self.problem else self.message
        return f"{self.cell.name:<18}{self.cell.ranks:>3}x{self.cell.nodes} {reported} {' '.join(marks)} {result[:300]}"


def _format_mark(mark: bool | None) -> str:
    if mark is None:
        return " -"
    return "ok" if mark else "NO"


HEADER = f"{'cell':>7} {'class':<18}{'ranks':>5} {'after':>5} cl rk li"


class Figures(NamedTuple):
    """The figures over all rows: counts, times in seconds, and shares between 0 and 1."""

    hangs: int
    others: int
    median_s: float
    p95_s: float
    ranks: float
    classes: float
    lines: float
    wrong: float
    stragglers: float
    restarts: int

    def list_misses(self) -> list[str]:
        """The names of the figures that miss their target."""
        checks = {
            "reported, median <= 5 s": not self.median_s > 5,
            "reported, p95 <= 20 s": not self.p95_s > 20,
            "correct ranks >= 98 %": self.ranks >= 0.98,
            "correct classes >= 95 %": self.classes >= 0.95,
            "correct lines >= 90 %": self.lines >= 0.90,
            "wrong <= 1 %": self.wrong <= 0.01,
            "stragglers named >= 90 %": self.stragglers >= 0.9,
            "healthy jobs restarted: 0": self.restarts == 0,
        }
        return [name for name, is_good in checks.items() if not is_good]

    def __str__(self) -> str:
        return (
            f"{self.hangs} hangs, {self.others} jobs without one: reported after {self.median_s:.1f} s (median) and "
            f"{self.p95_s:.1f} s (p95), {self.ranks:.1%} correct ranks, {self.classes:.1%} correct classes, "
            f"{self.lines:.1%} correct lines, {self.wrong:.1%} wrong, {self.stragglers:.0%} of stragglers named, "
            f"{self.restarts} healthy jobs restarted"
        )


def evaluate_row(cell: Cell, truth: Truth | None, recorder: VerdictRecorder) -> Row:
    """The row of a cell: the first verdict counts, and no later one may be wrong."""
    verdicts = recorder.verdicts
    if not cell.is_hang:
        return _evaluate_healthy_job(cell, recorder)
    if truth is None:
        return Row(cell, math.inf, problem="the fault has not struck")
    if not verdicts:
        return Row(cell, math.inf, message="not reported")
    expected = get_expected_verdict(cell)
    classified = [verdict for verdict in verdicts if verdict.kind != "unknown"]
    first = classified[0] if classified else verdicts[0]
    wrong_verdicts = [_quote(verdict) for verdict in verdicts if _is_wrong(cell, truth, verdict)]
    problem = wrong_verdicts[0] if wrong_verdicts else ""
    line = _LINE.search(first.location)
    has_line = bool(line and int(line[1]) in truth.lines) if expected.has_line else None
    has_class = first.kind in expected.kinds
    has_ranks = expected.allows_ranks(first.ranks)
    message = first.sentence
    if recorder.restarted_at_s is not None:
        message = f"restarted {recorder.restarted_at_s - first.time_s:.0f} s later: {message}"
    return Row(cell, first.time_s - truth.time_s, message, has_class, has_ranks, has_line, problem)


def _evaluate_healthy_job(cell: Cell, recorder: VerdictRecorder) -> Row:
    """The row of a job that does not hang: a slower rank may be named, and every verdict is wrong."""
    problems = [_quote(verdict) for verdict in recorder.verdicts[:1]]
    if recorder.restarted_at_s is not None:
        problems.append(f"would be restarted at {recorder.restarted_at_s:.1f} s")
    straggler = recorder.straggler
    straggler_text = "no straggler" if cell.name in STRAGGLERS else ""
    if straggler:
        straggler_text = describe_straggler(straggler)
    if straggler and cell.name in STRAGGLERS and straggler.rank != cell.culprit:
        problems.append(f"not rank {cell.culprit}: {straggler_text}")
    is_named = bool(straggler and straggler.rank == cell.culprit)
    return Row(
        cell,
        math.inf,
        message=straggler_text,
        has_ranks=is_named,
        problem="; ".join(problems),
        restarted_at_s=recorder.restarted_at_s,
    )


def _is_wrong(cell: Cell, truth: Truth, verdict: Verdict) -> bool:
    """Whether a verdict is too early, or neither correct nor unknown."""
    expected = get_expected_verdict(cell)
    if verdict.time_s < truth.time_s:
        return True
    if verdict.ranks and not expected.allows_ranks(verdict.ranks):
        return True
    return verdict.kind != "unknown" and verdict.kind not in expected.kinds


def _quote(verdict: Verdict) -> str:
    return f"{verdict.time_s:.1f} s: {verdict.kind} {list(verdict.ranks)} {verdict.location}: {verdict.sentence}"


def summarize(rows: Sequence[Row]) -> Figures:
    """The figures of all rows; a hang that was not reported has no correct rank, class or line.

    The time of a hang that can be reported only late does not count, but its class, ranks and line do.
    """
    hangs = [row for row in rows if row.cell.is_hang]
    report_times = sorted(row.reported_after_s for row in hangs if not row.cell.is_reported_late)
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
        sum(row.restarted_at_s is not None for row in rows),
    )


def render_kinds(rows: Sequence[Row]) -> str:
    """A table of the classes that hang: their cells, the median and the longest time, and the correct shares."""
    lines = []
    for name in dict.fromkeys(row.cell.name for row in rows if row.cell.is_hang):
        class_rows = [row for row in rows if row.cell.name == name]
        report_times = sorted(row.reported_after_s for row in class_rows)
        times = [f"{quantile(report_times, 0.5):.1f}", f"{report_times[-1]:.1f}"]
        classes = _format_share([row.has_class for row in class_rows])
        ranks = _format_share([row.has_ranks for row in class_rows])
        true_lines = _format_share([row.has_line for row in class_rows if row.has_line is not None])
        lines.append([name, str(len(class_rows)), *times, classes, ranks, true_lines])
    return render_table(["class", "cells", "median s", "longest s", "right class", "right ranks", "right line"], lines)


def _format_share(marks: Sequence[bool]) -> str:
    return f"{_share(marks):.0%}" if marks else "-"


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below or at which this share of the values is (nearest rank)."""
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)] if ordered else math.nan


def _share(marks: Sequence[bool]) -> float:
    return sum(marks) / len(marks) if marks else 1.0
