"""The end of a run, for the terminal, for Prefect and for report.json: bounded, whatever the run was.

What programs, hosts and clusters have said is quoted here; common/escaping.py takes from it what would be obeyed.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from torchyard.common.escaping import code, cut, fence, line, markdown, paragraph
from torchyard.metrics.registry import ROW_KEYS, describe, number
from torchyard.model.plan import CommandPlan
from torchyard.model.requirements import Check
from torchyard.model.run import Attempt, Handle, LogFile, Metrics, Outcome, Report, Row
from torchyard.run.plot import draw

T = TypeVar("T")
TOTALS = frozenset(f"{key}s" for key in ROW_KEYS)
SHOWN = 30  # rows of a table; a long run shows its first and last ones
COLUMNS, VALUES, STEPS, LOGS, LEFT = 12, 30, 30, 20, 20  # of a report, at most
CELL, DETAIL, SENTENCE, QUOTED = 24, 240, 2000, 240  # characters, at most
PAGE_BYTES = 200_000


def as_text(report: Report) -> str:
    """What the terminal shows."""
    head = f"{report.profile}  {report.run}  {report.end} in {span(report.seconds)}"
    steps = fold(report.steps, STEPS)
    lines = [head, *(f"  {each.name:<12} {span(each.seconds):>9}   {line(each.detail, DETAIL)}" for each in steps)]
    lines += [f"  {name:<12} {told}" for name, told in tries(report)]
    lines.append(f"  {report.end:<12} {indented(report.sentence)}")
    lines += [f"  {'left':<12} {thing}" for thing in left(report)]
    if report.collected:
        lines += [f"  {'log':<12} {path}  {told}" for path, told in logs(report.collected.logs)]
        lines += table(report.collected.metrics)
        lines += [f"  | {line(each, QUOTED)}" for each in tail(report)]
    return "\n".join([*lines, f"  {'report':<12} {report.folder}/report.json"])


def as_markdown(report: Report) -> str:
    """What Prefect's page of the run shows: at most PAGE_BYTES, the plot inside where there is room for it."""
    rows = report.collected.metrics.rows if report.collected else ()
    picture = draw(rows, columns(rows))
    whole = page(report, picture)
    return whole if len(whole.encode()) <= PAGE_BYTES else page(report, None)


def page(report: Report, picture: str | None) -> str:
    parts = [f"# {report.profile}: {report.end}", paragraph(report.sentence, SENTENCE), ""]
    steps = fold(report.steps, STEPS)
    parts += grid(["step", "took", ""], [[each.name, span(each.seconds), cut(each.detail, DETAIL)] for each in steps])
    parts += ["", *grid(["attempt", ""], tries(report))] if tries(report) else []
    parts += ["", *grid(["left behind"], [[thing] for thing in left(report)])] if report.left else []
    if report.collected:
        parts += ["", f"![metrics](data:image/svg+xml;base64,{picture})", ""] if picture else []
        parts += ["", *metrics_grid(report.collected.metrics), "", "| log | lines |", "|---|---|"]
        parts += [f"| {code(path)} | {markdown(told)} |" for path, told in logs(report.collected.logs)]
        parts += ["", *fence(tail(report), QUOTED)] if tail(report) else []
    return "\n".join(parts)


def fold(things: Sequence[T], most: int) -> Sequence[T]:
    """The first and the last of many."""
    half = most // 2
    return things if len(things) <= most else [*things[:half], *things[-half:]]


def indented(sentence: str) -> str:
    """A sentence of several lines, none of which looks like a row of the report."""
    return "\n      ".join(line(each) for each in cut(sentence, SENTENCE).split("\n"))


def left(report: Report) -> list[str]:
    """What teardown could not remove, and how much more there is."""
    more = [f"and {len(report.left) - LEFT:,} more: see report.json"] if len(report.left) > LEFT else []
    return [*(line(each, DETAIL) for each in report.left[:LEFT]), *more]


def logs(files: Sequence[LogFile]) -> list[tuple[str, str]]:
    """Path and wholeness of each log; of many those that lack something, the first, the last, and the rest as one."""
    every = range(len(files))
    lacking = [at for at in every if files[at].lost][: LOGS // 2]
    shown = every if len(files) <= LOGS else sorted({*fold(every, LOGS // 2), *lacking})
    found = [(line(files[at].path, DETAIL), wholeness(files[at])) for at in shown]
    if rest := [files[at] for at in every if at not in shown]:
        torn = sum(bool(each.lost) for each in rest)
        whole = f"{torn:,} incomplete" if torn else "whole"
        found.append((f"{len(rest):,} more", f"{sum(each.lines for each in rest):,} lines, {whole}"))
    return found


def tries(report: Report) -> list[tuple[str, str]]:
    """How each attempt ended, and on which machine, where there was more than one."""
    several = report.attempts if len(report.attempts) > 1 else ()
    return [(f"attempt {each.number}", line(describe_attempt(each), DETAIL)) for each in several]


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
    return f"{log.lines:,} lines, " + (f"incomplete: {line(log.lost, DETAIL)}" if log.lost else "whole")


def columns(rows: Sequence[Row]) -> list[str]:
    """The keys that tell rows apart, in the order in which they appear; totals (`epochs` beside `epoch`) left out."""
    keys = dict.fromkeys(key for row in rows for key in row if key not in TOTALS)
    return [key for key in keys if len(rows) < 2 or len({row.get(key) for row in rows}) > 1]


def summary(metrics: Metrics) -> list[tuple[str, str]]:
    """What held for the whole run: what every row says alike, and what the program summed up."""
    rows = metrics.rows
    apart = {*columns(rows), *TOTALS}
    alike = {key: value for key, value in rows[0].items() if key not in apart} if rows else {}
    told = [(line(key, CELL), value) for key, value in {**alike, **metrics.summary}.items()]
    more = [("...", f"{len(told) - VALUES:,} more values: see report.json")] if len(told) > VALUES else []
    return [*((key, line(number(value, digits=10), 4 * CELL)) for key, value in told[:VALUES]), *more]


def cells(metrics: Metrics) -> tuple[list[str], list[list[str]]]:
    """The head of the table of metrics, and its rows; what a program calls a column is cut as well."""
    keys = columns(metrics.rows)[:COLUMNS]
    rows = [[line(number(row[key]), CELL) if key in row else "" for key in keys] for row in fold(metrics.rows, SHOWN)]
    if len(metrics.rows) > SHOWN:
        rows.insert(SHOWN // 2, ["..."] * len(keys))
    return [line(key, CELL) for key in keys], rows


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
    listed = [f"- {markdown(key)}: {markdown(value)}" for key, value in summary(metrics)]
    return [*grid(keys, rows), "", *listed] if keys else listed


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A markdown table."""
    lines = [
        [markdown(cell) for cell in head],
        ["---"] * len(head),
        *([markdown(cell) for cell in row] for row in rows),
    ]
    return ["| " + " | ".join(row) + " |" for row in lines]


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
    return cut("; ".join([attempt.outcome.status.reason, *(describe(row) for row in rows[-1:])]), SENTENCE)


def submit_detail(handle: Handle) -> str:
    parts = "agents" if isinstance(handle.plan, CommandPlan) else "pods"
    return f"{handle.plan.job}, {len(handle.plan.nodes)} {parts}" + ("" if handle.created else ", adopted")


def wait_detail(outcome: Outcome, handle: Handle) -> str:
    """How the job ended; of an adopted one also how long it took in all, which this wait did not see."""
    started = "" if outcome.started_after is None else f", started after {outcome.started_after:.1f} s"
    took = (outcome.ended_at or handle.submitted_at) - handle.submitted_at
    ended = f", ended {span(took)} after its submit" if took > 0 and not handle.created else ""
    return f"{outcome.status.state}: {outcome.status.reason}{started}{ended}"
