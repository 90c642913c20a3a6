"""The report of a run, for the terminal, for Prefect and for report.json: of bounded size for a run of any length.

It quotes the output of programs, hosts and clusters; common/escaping.py removes the codes that a terminal or a browser
would execute.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from torchyard.common.escaping import (
    escape_markdown,
    escape_paragraph,
    format_code,
    format_code_block,
    format_markdown_table,
    shorten_text,
    single_line,
)
from torchyard.common.text import MAX_SENTENCE_CHARS, align_columns, format_duration, select_ends
from torchyard.diagnosis.fabric import list_node_rows
from torchyard.diagnosis.pod_facts import describe_exit
from torchyard.metrics.registry import ROW_KEYS, format_number
from torchyard.model.run import Attempt, LogFile, Metrics, Report, Row
from torchyard.pages.hang import describe_hang, render_hang, tabulate_rank_groups
from torchyard.pages.plot import draw_plot

_TOTAL_KEYS = frozenset(f"{key}s" for key in ROW_KEYS)
# The limits of a report.
_MAX_TABLE_ROWS = 30  # of a long run, the first and last ones
_MAX_COLUMNS = 12
_MAX_VALUES = 30
_MAX_STEPS = 30
_MAX_LOGS = 20
_MAX_LEFTOVERS = 20
_MAX_CELL_CHARS = 24
_MAX_DETAIL_CHARS = 240
_MAX_QUOTE_CHARS = 240
MAX_PAGE_BYTES = 200_000


class _Entry(NamedTuple):
    """A line of the report: a label and its text."""

    label: str
    text: str


def render_text(report: Report) -> str:
    """The report for the terminal."""
    lines = [f"{report.profile}  {report.run}  {report.end} in {format_duration(report.seconds)}"]
    for step in select_ends(report.steps, _MAX_STEPS):
        detail = single_line(step.detail, _MAX_DETAIL_CHARS)
        lines.append(f"  {step.name:<12} {format_duration(step.seconds):>9}   {detail}")
    lines += _align_entries(_format_attempts(report))
    lines.append(f"  {report.end:<12} {_indent_sentence(report.sentence)}")
    lines += _align_entries(_format_findings(report))
    lines += align_columns(_format_nodes(report), str.ljust)
    lines += _align_entries(_Entry(*entry) for entry in describe_hang(report))
    lines += align_columns(tabulate_rank_groups(report), str.ljust)
    lines += _align_entries(_Entry("left", leftover) for leftover in _format_leftovers(report))
    if report.collected:
        for log in _format_logs(report.collected.logs):
            lines.append(f"  {'log':<12} {log.label}  {log.text}")
        lines += _format_table(report.collected.metrics)
        lines += [f"  | {single_line(line, _MAX_QUOTE_CHARS)}" for line in _get_failure_tail(report)]
    lines.append(f"  {'report':<12} {report.folder}/report.json")
    return "\n".join(lines)


def _align_entries(entries: Iterable[_Entry]) -> list[str]:
    return [f"  {entry.label:<12} {entry.text}" for entry in entries]


def render_markdown(report: Report) -> str:
    """The report for Prefect's page of the run: at most MAX_PAGE_BYTES, with the plot if it fits."""
    rows = report.collected.metrics.rows if report.collected else ()
    page = _render_page(report, draw_plot(rows, _list_varying_columns(rows)))
    if len(page.encode()) <= MAX_PAGE_BYTES:
        return page
    return _render_page(report, None)


def _render_page(report: Report, plot_base64: str | None) -> str:
    lines = [f"# {report.profile}: {report.end}", escape_paragraph(report.sentence, MAX_SENTENCE_CHARS), ""]
    steps = select_ends(report.steps, _MAX_STEPS)
    lines += format_markdown_table(
        ["step", "took", ""],
        [[step.name, format_duration(step.seconds), shorten_text(step.detail, _MAX_DETAIL_CHARS)] for step in steps],
    )
    findings = _format_findings(report)
    if findings:
        lines += ["", *format_markdown_table(["cause", ""], findings)]
    nodes = _format_nodes(report)
    if nodes:
        lines += ["", *format_markdown_table(nodes[0], nodes[1:])]
    lines += render_hang(report)
    attempts = _format_attempts(report)
    if attempts:
        lines += ["", *format_markdown_table(["attempt", ""], attempts)]
    leftovers = _format_leftovers(report)
    if leftovers:
        lines += ["", *format_markdown_table(["left behind"], [[leftover] for leftover in leftovers])]
    if report.collected:
        if plot_base64:
            lines += ["", _embed_plot(plot_base64), ""]
        lines += ["", *_render_metrics(report.collected.metrics), "", "| log | lines |", "|---|---|"]
        for log in _format_logs(report.collected.logs):
            lines.append(f"| {format_code(log.label)} | {escape_markdown(log.text)} |")
        tail = _get_failure_tail(report)
        if tail:
            lines += ["", *format_code_block(tail, _MAX_QUOTE_CHARS)]
    return "\n".join(lines)


def _embed_plot(plot_base64: str) -> str:
    return f"![metrics](data:image/svg+xml;base64,{plot_base64})"


def render_metrics_page(job: str, rows: Sequence[Row]) -> str:
    """The curves and the last rows of a running job."""
    paragraphs = [f"# {escape_markdown(job)}"]
    plot_base64 = draw_plot(rows, _list_varying_columns(rows))
    if plot_base64:
        paragraphs.append(_embed_plot(plot_base64))
    paragraphs.append("\n".join(_render_metrics(Metrics(rows=tuple(rows)))))
    return "\n\n".join(paragraphs)


def _indent_sentence(sentence: str) -> str:
    """Indent the further lines of a sentence, so that none of them looks like a row of the report."""
    return "\n      ".join(single_line(line) for line in shorten_text(sentence, MAX_SENTENCE_CHARS).split("\n"))


def _format_leftovers(report: Report) -> list[str]:
    """The leftovers of teardown, at most _MAX_LEFTOVERS, and the number of the others."""
    leftovers = [single_line(leftover, _MAX_DETAIL_CHARS) for leftover in report.leftovers[:_MAX_LEFTOVERS]]
    hidden_count = len(report.leftovers) - len(leftovers)
    if hidden_count:
        leftovers.append(f"and {hidden_count:,} more: see report.json")
    return leftovers


def _format_logs(files: Sequence[LogFile]) -> list[_Entry]:
    """Path and completeness of each log; of many, the first, the last, incomplete ones, and the rest as one line."""
    indices: Sequence[int] = range(len(files))
    if len(files) > _MAX_LOGS:
        incomplete = [index for index in indices if files[index].lost][: _MAX_LOGS // 2]
        indices = sorted({*select_ends(indices, _MAX_LOGS // 2), *incomplete})
    entries = [
        _Entry(single_line(files[index].path, _MAX_DETAIL_CHARS), _describe_log(files[index])) for index in indices
    ]
    visible = set(indices)
    hidden = [file for index, file in enumerate(files) if index not in visible]
    if hidden:
        incomplete_count = sum(bool(file.lost) for file in hidden)
        completeness = f"{incomplete_count:,} incomplete" if incomplete_count else "complete"
        line_count = sum(file.lines for file in hidden)
        entries.append(_Entry(f"{len(hidden):,} more", f"{line_count:,} lines, {completeness}"))
    return entries


def _format_attempts(report: Report) -> list[_Entry]:
    """How each attempt ended and on which machine; empty if there was only one attempt."""
    if len(report.attempts) < 2:
        return []
    return [
        _Entry(f"attempt {attempt.number}", single_line(_describe_attempt(attempt), _MAX_DETAIL_CHARS))
        for attempt in report.attempts
    ]


def _format_findings(report: Report) -> list[_Entry]:
    """The cause of a failure, the network, the trend, the archive, and the messages that were not delivered."""
    entries: list[_Entry] = []
    if report.trend:
        entries.append(_Entry("trend", f"{report.trend.verdict}: {report.trend.sentence}"))
    if report.archive:
        entries.append(_Entry("archive", report.archive))
    entries += [_Entry("unsent", message) for message in select_ends(report.unsent, _MAX_LEFTOVERS)]
    short_entries = [_Entry(entry.label, single_line(entry.text, _MAX_DETAIL_CHARS)) for entry in entries]
    return [*_format_cause(report), *_format_container_failures(report), *_format_fabric(report), *short_entries]


def _format_fabric(report: Report) -> list[_Entry]:
    """The verdict on the network, and the first line that proves it."""
    fabric = report.collected.fabric if report.collected else None
    if fabric is None:
        return []
    entries = [_Entry("fabric", single_line(f"{fabric.verdict}: {fabric.sentence}", _MAX_DETAIL_CHARS))]
    if fabric.proof:
        entries.append(_Entry("", single_line(fabric.proof, _MAX_DETAIL_CHARS)))
    return entries


def _format_nodes(report: Report) -> list[list[str]]:
    """The network of each node as a table with its header; empty if it is as promised."""
    fabric = report.collected.fabric if report.collected else None
    rows = list_node_rows(fabric) if fabric else []
    return [[single_line(cell, 4 * _MAX_CELL_CHARS) for cell in row] for row in rows]


def _format_container_failures(report: Report) -> list[_Entry]:
    """The failures of the tries of the job's own controller in the last attempt; empty if it tried only once."""
    outcome = report.attempts[-1].outcome if report.attempts else None
    if outcome is None or not outcome.status.retries:
        return []
    entries: list[_Entry] = []
    for failure in outcome.container_failures:
        failed_at = datetime.fromtimestamp(failure.failed_at, UTC)
        entries.append(_Entry("try", f"{failure.node} {describe_exit(failure.exit_code)} at {failed_at:%H:%M:%S} UTC"))
    return list(select_ends(entries, _MAX_STEPS))


def _format_cause(report: Report) -> list[_Entry]:
    """The slug of a failed run's cause, whether another attempt may succeed, and the line that proves it."""
    failure = report.collected.failure if report.collected and report.end == "failed" else None
    if failure is None:
        return []
    advice = "worth another attempt" if failure.retry else "another attempt would not help"
    entries = [_Entry("cause", f"{failure.cause}, {advice}")]
    if failure.line:
        entries.append(_Entry("proof", single_line(failure.line, _MAX_DETAIL_CHARS)))
    return entries


def _describe_attempt(attempt: Attempt) -> str:
    status = attempt.outcome.status
    failure = attempt.collected.failure
    if failure is None:
        return f"{status.state}: {status.reason}"
    machine = attempt.outcome.machines.get(failure.node or "")
    location = f" (on {machine})" if machine else ""
    return f"{failure.cause}: {failure.sentence}{location}"


def _get_failure_tail(report: Report) -> tuple[str, ...]:
    """The last lines of the rank or node that failed; empty for a run that did not fail."""
    failure = report.collected.failure if report.collected else None
    return failure.tail if failure and report.end == "failed" else ()


def _describe_log(log: LogFile) -> str:
    completeness = f"incomplete: {single_line(log.lost, _MAX_DETAIL_CHARS)}" if log.lost else "complete"
    return f"{log.lines:,} lines, {completeness}"


def _list_varying_columns(rows: Sequence[Row]) -> list[str]:
    """The keys whose values differ between rows, in order of appearance, without totals (`epochs` beside `epoch`)."""
    keys: dict[str, None] = {}  # ordered
    for row in rows:
        keys |= dict.fromkeys(row)
    columns = [key for key in keys if key not in _TOTAL_KEYS]
    if len(rows) < 2:
        return columns
    return [key for key in columns if len({row.get(key) for row in rows}) > 1]


def _list_summary_values(metrics: Metrics) -> list[_Entry]:
    """Values that hold for the whole run: those that are equal in every row, and the program's own summary."""
    values: Row = {}
    if metrics.rows:
        excluded = {*_list_varying_columns(metrics.rows), *_TOTAL_KEYS}
        values = {key: value for key, value in metrics.rows[0].items() if key not in excluded}
    values |= metrics.summary
    entries: list[_Entry] = []
    for key, value in list(values.items())[:_MAX_VALUES]:
        text = single_line(format_number(value, digits=10), 4 * _MAX_CELL_CHARS)
        entries.append(_Entry(single_line(key, _MAX_CELL_CHARS), text))
    if len(values) > _MAX_VALUES:
        entries.append(_Entry("...", f"{len(values) - _MAX_VALUES:,} more values: see report.json"))
    return entries


def _list_table_cells(metrics: Metrics) -> tuple[list[str], list[list[str]]]:
    """The header of the table of metrics and its rows; long column names are shortened as well."""
    keys = _list_varying_columns(metrics.rows)[:_MAX_COLUMNS]
    rows = [
        [single_line(format_number(row[key]), _MAX_CELL_CHARS) if key in row else "" for key in keys]
        for row in select_ends(metrics.rows, _MAX_TABLE_ROWS)
    ]
    if len(metrics.rows) > _MAX_TABLE_ROWS:
        rows.insert(_MAX_TABLE_ROWS // 2, ["..."] * len(keys))
    return [single_line(key, _MAX_CELL_CHARS) for key in keys], rows


def _format_table(metrics: Metrics) -> list[str]:
    """The rows in columns, and the summary below them."""
    lines: list[str] = []
    if metrics.rows:
        header, rows = _list_table_cells(metrics)
        lines += align_columns([header, *rows], str.rjust)
    return lines + _align_entries(_list_summary_values(metrics))


def _render_metrics(metrics: Metrics) -> list[str]:
    header, rows = _list_table_cells(metrics)
    items = [
        f"- {escape_markdown(entry.label)}: {escape_markdown(entry.text)}" for entry in _list_summary_values(metrics)
    ]
    return [*format_markdown_table(header, rows), "", *items] if header else items
