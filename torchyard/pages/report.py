"""The report of a run, for the terminal, for Prefect and for report.json: bounded, however long the run was.

It quotes what programs, hosts and clusters printed; common/escaping.py removes what a terminal or browser would obey.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from torchyard.common.escaping import (
    escape_markdown,
    escape_paragraph,
    format_code,
    format_code_block,
    format_markdown_table,
    shorten_text,
    single_line,
)
from torchyard.diagnosis.fabric import tabulate_nodes
from torchyard.diagnosis.pod_facts import describe_exit
from torchyard.metrics.registry import ROW_KEYS, describe_row, format_number
from torchyard.model.plan import CommandPlan
from torchyard.model.requirements import Check
from torchyard.model.run import Attempt, Handle, LogFile, Metrics, Outcome, Report, Row
from torchyard.pages.hang import describe_hang, render_hang, tabulate_clusters
from torchyard.pages.plot import draw_plot
from torchyard.pages.text import align_columns, format_duration, select_ends

_TOTAL_KEYS = frozenset(f"{key}s" for key in ROW_KEYS)
_MAX_TABLE_ROWS = 30  # rows of a table; a long run shows its first and last ones
_MAX_COLUMNS, _MAX_VALUES, _MAX_STEPS, _MAX_LOGS, _MAX_LEFTOVERS = 12, 30, 30, 20, 20  # of a report, at most
_MAX_CELL_CHARS, _MAX_DETAIL_CHARS, MAX_SENTENCE_CHARS, _MAX_QUOTE_CHARS = 24, 240, 2000, 240  # characters, at most
_MAX_PAGE_BYTES = 200_000


def render_text(report: Report) -> str:
    """The report as the terminal shows it."""
    head = f"{report.profile}  {report.run}  {report.end} in {format_duration(report.seconds)}"
    lines = [head]
    for each in select_ends(report.steps, _MAX_STEPS):
        detail = single_line(each.detail, _MAX_DETAIL_CHARS)
        lines.append(f"  {each.name:<12} {format_duration(each.seconds):>9}   {detail}")
    lines += [f"  {name:<12} {told}" for name, told in _format_attempts(report)]
    lines.append(f"  {report.end:<12} {_indent_sentence(report.sentence)}")
    lines += [f"  {name:<12} {told}" for name, told in _format_findings(report)]
    lines += align_columns(_format_nodes(report), str.ljust)
    lines += [f"  {name:<12} {told}" for name, told in describe_hang(report)]
    lines += align_columns(tabulate_clusters(report), str.ljust)
    lines += [f"  {'left':<12} {thing}" for thing in _format_leftovers(report)]
    if report.collected:
        lines += [f"  {'log':<12} {path}  {told}" for path, told in _format_logs(report.collected.logs)]
        lines += _format_table(report.collected.metrics)
        lines += [f"  | {single_line(each, _MAX_QUOTE_CHARS)}" for each in _failure_tail(report)]
    return "\n".join([*lines, f"  {'report':<12} {report.folder}/report.json"])


def render_markdown(report: Report) -> str:
    """The report as Prefect's page of the run shows it: at most _MAX_PAGE_BYTES, with the plot if it fits."""
    rows = report.collected.metrics.rows if report.collected else ()
    picture = draw_plot(rows, _varying_columns(rows))
    whole = _render_page(report, picture)
    return whole if len(whole.encode()) <= _MAX_PAGE_BYTES else _render_page(report, None)


def _render_page(report: Report, picture: str | None) -> str:
    parts = [f"# {report.profile}: {report.end}", escape_paragraph(report.sentence, MAX_SENTENCE_CHARS), ""]
    steps = select_ends(report.steps, _MAX_STEPS)
    parts += format_markdown_table(
        ["step", "took", ""],
        [[each.name, format_duration(each.seconds), shorten_text(each.detail, _MAX_DETAIL_CHARS)] for each in steps],
    )
    causes = _format_findings(report)
    parts += ["", *format_markdown_table(["cause", ""], causes)] if causes else []
    if nodes := _format_nodes(report):
        parts += ["", *format_markdown_table(nodes[0], nodes[1:])]
    parts += render_hang(report)
    parts += ["", *format_markdown_table(["attempt", ""], _format_attempts(report))] if _format_attempts(report) else []
    parts += (
        ["", *format_markdown_table(["left behind"], [[thing] for thing in _format_leftovers(report)])]
        if report.left
        else []
    )
    if report.collected:
        parts += ["", f"![metrics](data:image/svg+xml;base64,{picture})", ""] if picture else []
        parts += ["", *_render_metrics(report.collected.metrics), "", "| log | lines |", "|---|---|"]
        parts += [
            f"| {format_code(path)} | {escape_markdown(told)} |" for path, told in _format_logs(report.collected.logs)
        ]
        parts += ["", *format_code_block(_failure_tail(report), _MAX_QUOTE_CHARS)] if _failure_tail(report) else []
    return "\n".join(parts)


def render_metrics_page(job: str, rows: Sequence[Row]) -> str:
    """The curves and the last rows of a job that still runs."""
    picture = draw_plot(rows, _varying_columns(rows))
    parts = [f"# {escape_markdown(job)}", *([f"![metrics](data:image/svg+xml;base64,{picture})"] if picture else [])]
    return "\n\n".join([*parts, "\n".join(_render_metrics(Metrics(rows=tuple(rows))))])


def _indent_sentence(sentence: str) -> str:
    """Indent a sentence of several lines, so that none of them looks like a row of the report."""
    return "\n      ".join(single_line(each) for each in shorten_text(sentence, MAX_SENTENCE_CHARS).split("\n"))


def _format_leftovers(report: Report) -> list[str]:
    """What teardown could not remove, and how much more there is."""
    more = (
        [f"and {len(report.left) - _MAX_LEFTOVERS:,} more: see report.json"]
        if len(report.left) > _MAX_LEFTOVERS
        else []
    )
    return [*(single_line(each, _MAX_DETAIL_CHARS) for each in report.left[:_MAX_LEFTOVERS]), *more]


def _format_logs(files: Sequence[LogFile]) -> list[tuple[str, str]]:
    """Path and completeness of each log; of many, the first, the last, incomplete ones, and the rest as one line."""
    every = range(len(files))
    lacking = [at for at in every if files[at].lost][: _MAX_LOGS // 2]
    shown = every if len(files) <= _MAX_LOGS else sorted({*select_ends(every, _MAX_LOGS // 2), *lacking})
    found = [(single_line(files[at].path, _MAX_DETAIL_CHARS), _describe_log(files[at])) for at in shown]
    if rest := [files[at] for at in every if at not in shown]:
        torn = sum(bool(each.lost) for each in rest)
        whole = f"{torn:,} incomplete" if torn else "whole"
        found.append((f"{len(rest):,} more", f"{sum(each.lines for each in rest):,} lines, {whole}"))
    return found


def _format_attempts(report: Report) -> list[tuple[str, str]]:
    """How each attempt ended and on which machine; empty if there was only one attempt."""
    several = report.attempts if len(report.attempts) > 1 else ()
    return [(f"attempt {each.number}", single_line(_describe_attempt(each), _MAX_DETAIL_CHARS)) for each in several]


def _format_findings(report: Report) -> list[tuple[str, str]]:
    """Why a run failed, what its network was, how its number compares, its archive, and which messages were lost."""
    told = [("trend", f"{report.trend.verdict}: {report.trend.sentence}")] if report.trend else []
    told += [("archive", report.archive)] if report.archive else []
    told += [("unsent", each) for each in select_ends(report.unsent, _MAX_LEFTOVERS)]
    short = [(name, single_line(text, _MAX_DETAIL_CHARS)) for name, text in told]
    return [*_format_cause(report), *_format_endings(report), *_format_fabric(report), *short]


def _format_fabric(report: Report) -> list[tuple[str, str]]:
    """The verdict on the network, and the first line that proves it."""
    found = report.collected.fabric if report.collected else None
    if found is None:
        return []
    told = f"{found.verdict}: {found.sentence}"
    return [
        (name, single_line(text, _MAX_DETAIL_CHARS)) for name, text in (("fabric", told), ("", found.proof)) if text
    ]


def _format_nodes(report: Report) -> list[list[str]]:
    """The network of each node, as a table, if it is not as promised."""
    found = report.collected.fabric if report.collected else None
    rows = tabulate_nodes(found) if found else []
    return [[single_line(cell, 4 * _MAX_CELL_CHARS) for cell in row] for row in rows]


def _format_endings(report: Report) -> list[tuple[str, str]]:
    """The failures of the tries of the job's own controller in the last attempt; empty if it has tried only once."""
    outcome = report.attempts[-1].outcome if report.attempts else None
    if outcome is None or not outcome.status.retries:
        return []
    told = [
        f"{each.node} {describe_exit(each.exit_code)} at {datetime.fromtimestamp(each.at, UTC):%H:%M:%S} UTC"
        for each in outcome.endings
    ]
    return [("try", each) for each in select_ends(told, _MAX_STEPS)]


def _format_cause(report: Report) -> list[tuple[str, str]]:
    """The slug of a failed run's cause, whether another attempt may work, and the line that proves it."""
    failure = report.collected.failure if report.collected and report.end == "failed" else None
    if failure is None:
        return []
    worth = "worth another attempt" if failure.retry else "another attempt would not help"
    proof = [("proof", single_line(failure.line, _MAX_DETAIL_CHARS))] if failure.line else []
    return [("cause", f"{failure.cause}, {worth}"), *proof]


def _describe_attempt(attempt: Attempt) -> str:
    failure, status = attempt.collected.failure, attempt.outcome.status
    if failure is None:
        return f"{status.state}: {status.reason}"
    machine = attempt.outcome.machines.get(failure.node or "")
    return f"{failure.cause}: {failure.sentence}" + (f" (on {machine})" if machine else "")


def _failure_tail(report: Report) -> tuple[str, ...]:
    """The last lines of what failed; a run that was stopped has nothing to explain."""
    failure = report.collected.failure if report.collected else None
    return failure.tail if failure and report.end == "failed" else ()


def _describe_log(log: LogFile) -> str:
    return f"{log.lines:,} lines, " + (
        f"incomplete: {single_line(log.lost, _MAX_DETAIL_CHARS)}" if log.lost else "whole"
    )


def _varying_columns(rows: Sequence[Row]) -> list[str]:
    """The keys whose values differ between rows, in order of appearance, without totals (`epochs` beside `epoch`)."""
    keys = dict.fromkeys(key for row in rows for key in row if key not in _TOTAL_KEYS)
    return [key for key in keys if len(rows) < 2 or len({row.get(key) for row in rows}) > 1]


def _summary_values(metrics: Metrics) -> list[tuple[str, str]]:
    """Values that hold for the whole run: those that are equal in every row, and the program's own summary."""
    rows = metrics.rows
    apart = {*_varying_columns(rows), *_TOTAL_KEYS}
    alike = {key: value for key, value in rows[0].items() if key not in apart} if rows else {}
    told = [(single_line(key, _MAX_CELL_CHARS), value) for key, value in {**alike, **metrics.summary}.items()]
    more = [("...", f"{len(told) - _MAX_VALUES:,} more values: see report.json")] if len(told) > _MAX_VALUES else []
    return [
        *(
            (key, single_line(format_number(value, digits=10), 4 * _MAX_CELL_CHARS))
            for key, value in told[:_MAX_VALUES]
        ),
        *more,
    ]


def _table_cells(metrics: Metrics) -> tuple[list[str], list[list[str]]]:
    """The head of the table of metrics, and its rows; long column names are cut as well."""
    keys = _varying_columns(metrics.rows)[:_MAX_COLUMNS]
    rows = [
        [single_line(format_number(row[key]), _MAX_CELL_CHARS) if key in row else "" for key in keys]
        for row in select_ends(metrics.rows, _MAX_TABLE_ROWS)
    ]
    if len(metrics.rows) > _MAX_TABLE_ROWS:
        rows.insert(_MAX_TABLE_ROWS // 2, ["..."] * len(keys))
    return [single_line(key, _MAX_CELL_CHARS) for key in keys], rows


def _format_table(metrics: Metrics) -> list[str]:
    """The rows in columns, and the summary below them."""
    lines = []
    if metrics.rows:
        keys, rows = _table_cells(metrics)
        lines = align_columns([keys, *rows], str.rjust)
    return lines + [f"  {key:<12} {value}" for key, value in _summary_values(metrics)]


def _render_metrics(metrics: Metrics) -> list[str]:
    keys, rows = _table_cells(metrics)
    listed = [f"- {escape_markdown(key)}: {escape_markdown(value)}" for key, value in _summary_values(metrics)]
    return [*format_markdown_table(keys, rows), "", *listed] if keys else listed


def describe_checks(checks: Sequence[Check]) -> str:
    warnings = sum(check.verdict == "warning" for check in checks)
    return f"{len(checks)} of {len(checks)} checks" + (f", {warnings} with a warning" if warnings else "")


def describe_logs(attempt: Attempt) -> str:
    logs = attempt.collected.logs
    whole = "whole" if not any(log.lost for log in logs) else "incomplete"
    return f"{len(logs)} logs, {sum(log.lines for log in logs):,} lines, {whole} ({Path(logs[0].path).parent.parent})"


def describe_success(attempt: Attempt) -> str:
    """`2 of 2 agents ended with 0; epoch 10: accuracy 0.9861`."""
    last = [describe_row(row) for row in attempt.collected.metrics.rows[-1:]]
    return shorten_text("; ".join([attempt.outcome.status.reason, *last]), MAX_SENTENCE_CHARS)


def describe_submission(handle: Handle) -> str:
    parts = "agents" if isinstance(handle.plan, CommandPlan) else "pods"
    return f"{handle.plan.job}, {len(handle.plan.nodes)} {parts}" + ("" if handle.created else ", adopted")


def describe_outcome(outcome: Outcome, handle: Handle) -> str:
    """How the job ended; for an adopted job also its total time, which this wait did not see."""
    started = "" if outcome.started_after is None else f", started after {outcome.started_after:.1f} s"
    took = (outcome.ended_at or handle.submitted_at) - handle.submitted_at
    ended = f", ended {format_duration(took)} after its submit" if took > 0 and not handle.created else ""
    return f"{outcome.status.state}: {outcome.status.reason}{started}{ended}"
