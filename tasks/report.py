"""The end of a run, for the terminal, for Prefect and for report.json."""

import base64
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from tasks.metrics import ROW_KEYS, describe, number
from tasks.model import Attempt, Handle, LogFile, Metrics, Outcome, Report, Row
from tasks.needs import Check
from tasks.plan import CommandPlan

TOTALS = frozenset(f"{key}s" for key in ROW_KEYS)
SHOWN = 30  # rows of a table; a long run shows its first and last ones


def as_text(report: Report) -> str:
    """What the terminal shows."""
    head = f"{report.profile}  {report.run}  {report.end} in {span(report.seconds)}"
    lines = [head, *(f"  {each.name:<12} {span(each.seconds):>9}   {each.detail}" for each in report.steps)]
    lines += [f"  {name:<12} {told}" for name, told in tries(report)]
    lines.append(f"  {report.end:<12} {report.sentence}")
    lines += [f"  {'left':<12} {thing}" for thing in report.left]
    if report.collected:
        lines += [f"  {'log':<12} {log.path}  {wholeness(log)}" for log in report.collected.logs]
        lines += table(report.collected.metrics)
        lines += [f"  | {line}" for line in tail(report)]
    return "\n".join([*lines, f"  {'report':<12} {report.folder}/report.json"])


def as_markdown(report: Report) -> str:
    """What Prefect's page of the run shows: at most some 100 KB, the plot inside."""
    parts = [f"# {report.profile}: {report.end}", report.sentence, ""]
    parts += grid(["step", "took", ""], [[each.name, span(each.seconds), each.detail] for each in report.steps])
    parts += ["", *grid(["attempt", ""], tries(report))] if tries(report) else []
    if report.collected:
        picture = plot(report.collected.metrics)
        parts += ["", f"![metrics](data:image/svg+xml;base64,{picture})", ""] if picture else []
        parts += ["", *metrics_grid(report.collected.metrics), "", "| log | lines |", "|---|---|"]
        parts += [f"| `{log.path}` | {wholeness(log)} |" for log in report.collected.logs]
        parts += ["", "```", *tail(report), "```"] if tail(report) else []
    return "\n".join(parts)


def tries(report: Report) -> list[tuple[str, str]]:
    """How each attempt ended, and on which machine, where there was more than one."""
    return [(f"attempt {each.number}", describe_attempt(each)) for each in report.attempts if len(report.attempts) > 1]


def describe_attempt(attempt: Attempt) -> str:
    failure, status = attempt.collected.failure, attempt.outcome.status
    if failure is None:
        return f"{status.state}: {status.reason}"
    machine = attempt.outcome.machines.get(failure.node or "")
    return f"{failure.cause}: {failure.sentence}" + (f" (on {machine})" if machine else "")


def tail(report: Report) -> tuple[str, ...]:
    """The last lines of what failed; a run that was stopped has nothing to explain."""
    failure = report.collected.failure if report.collected else None
    return failure.tail if failure and report.end == "failed" else ()


def span(seconds: float) -> str:
    """`0.3 s`, `38 s`, `12 min 41 s`, `2 h 05 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60:02} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60:02} min"


def wholeness(log: LogFile) -> str:
    return f"{log.lines:,} lines, " + (f"incomplete: {log.lost}" if log.lost else "whole")


def columns(rows: Sequence[Row]) -> list[str]:
    """The keys that tell rows apart, in the order in which they appear; totals (`epochs` beside `epoch`) left out."""
    keys = dict.fromkeys(key for row in rows for key in row if key not in TOTALS)
    return [key for key in keys if len(rows) < 2 or len({row.get(key) for row in rows}) > 1]


def summary(metrics: Metrics) -> list[tuple[str, str]]:
    """What held for the whole run: what every row says alike, and what the program summed up."""
    rows = metrics.rows
    apart = {*columns(rows), *TOTALS}
    alike = {key: value for key, value in rows[0].items() if key not in apart} if rows else {}
    return [(key, number(value, digits=10)) for key, value in {**alike, **metrics.summary}.items()]


def cells(metrics: Metrics) -> tuple[list[str], list[list[str]]]:
    keys = columns(metrics.rows)
    rows = [[number(row[key]) if key in row else "" for key in keys] for row in metrics.rows]
    half = SHOWN // 2
    return keys, rows if len(rows) <= SHOWN else [*rows[:half], ["..."] * len(keys), *rows[-half:]]


def table(metrics: Metrics) -> list[str]:
    """The rows in columns, and the summary below them."""
    lines = []
    if metrics.rows:
        keys, rows = cells(metrics)
        widths = [max(len(cell) for cell in column) for column in zip(keys, *rows, strict=True)]
        lines = [
            "    " + "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
            for row in (keys, *rows)
        ]
    return lines + [f"  {key:<12} {value}" for key, value in summary(metrics)]


def metrics_grid(metrics: Metrics) -> list[str]:
    keys, rows = cells(metrics)
    listed = [f"- {key}: {value}" for key, value in summary(metrics)]
    return [*grid(keys, rows), "", *listed] if keys else listed


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A markdown table."""
    return ["| " + " | ".join(row).replace("\n", " ") + " |" for row in (head, ["---"] * len(head), *rows)]


def plot(metrics: Metrics) -> str | None:
    """Every measured value over epoch, step or trial, one panel each, as SVG in base64; None without two rows."""
    rows = metrics.rows
    axis = next((key for key in ROW_KEYS if rows and key in rows[0]), None)
    names = [key for key in columns(rows) if key != axis]
    if axis is None or len(rows) < 2 or not names:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(min(4 * len(names), 12), 3), layout="constrained")
    for place, name in enumerate(names[:3], 1):
        points = [(row.get(axis), row.get(name)) for row in rows]
        drawn = [(x, y) for x, y in points if isinstance(x, int | float) and isinstance(y, int | float)]
        panel = figure.add_subplot(1, min(len(names), 3), place)
        panel.plot([x for x, _ in drawn], [y for _, y in drawn], marker=".", linewidth=1)
        panel.set_title(name, fontsize=10)
        panel.set_xlabel(axis)
        panel.grid(alpha=0.3)
    drawing = io.StringIO()
    figure.savefig(drawing, format="svg")
    return base64.b64encode(drawing.getvalue().encode()).decode()


def checks_detail(checks: Sequence[Check]) -> str:
    warnings = sum(check.verdict == "warning" for check in checks)
    return f"{len(checks)} of {len(checks)} checks" + (f", {warnings} with a warning" if warnings else "")


def logs_detail(attempt: Attempt) -> str:
    logs = attempt.collected.logs
    whole = "whole" if not any(log.lost for log in logs) else "incomplete"
    return f"{len(logs)} logs, {sum(log.lines for log in logs):,} lines, {whole} ({Path(logs[0].path).parent.parent})"


def success(attempt: Attempt) -> str:
    """`2 of 2 agents ended with 0; epoch 10: accuracy 0.9861`."""
    rows = attempt.collected.metrics.rows
    return "; ".join([attempt.outcome.status.reason, *(describe(row) for row in rows[-1:])])


def submit_detail(handle: Handle) -> str:
    parts = "agents" if isinstance(handle.plan, CommandPlan) else "pods"
    return f"{handle.plan.job}, {len(handle.plan.nodes)} {parts}" + ("" if handle.created else ", adopted")


def wait_detail(outcome: Outcome) -> str:
    started = "" if outcome.started_after is None else f", started after {outcome.started_after:.1f} s"
    return f"{outcome.status.state}: {outcome.status.reason}{started}"
