"""The report of a run, for the terminal, for Prefect and for report.json: of bounded size for a run of any length.

It quotes the output of programs, hosts and clusters; common/escaping.py removes the codes that a terminal or a browser
would execute.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from torchyard.common import page
from torchyard.common.escaping import shorten_text, single_line
from torchyard.common.page import Block, Code, Entries, Page, Paragraph, Picture, Table
from torchyard.common.text import MAX_SENTENCE_CHARS, format_duration, select_ends
from torchyard.diagnosis.checkpoints import select_resume_checkpoint
from torchyard.diagnosis.nccl.fabric import list_node_rows
from torchyard.diagnosis.pod_facts import describe_exit
from torchyard.metrics.registry import ROW_KEYS, format_number
from torchyard.model.causes.launcher import LauncherCause
from torchyard.model.causes.program import ProgramCause
from torchyard.model.run import Attempt, Failure, LogFile, Metrics, Report, Row
from torchyard.pages.hang import build_hang_blocks
from torchyard.pages.plot import draw_plot

_TOTAL_KEYS = frozenset(f"{key}s" for key in ROW_KEYS)
# The limits of a report.
_UNEXPLAINED_CAUSES = frozenset({ProgramCause.UNKNOWN, ProgramCause.KILLED, LauncherCause.SILENCE})
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


def render_text(report: Report) -> str:
    """The report for the terminal."""
    return page.render_text(build_report_page(report))


def render_markdown(report: Report) -> str:
    """The report for Prefect's page of the run: at most MAX_PAGE_BYTES, with the plot if it fits."""
    rows = report.collected.metrics.rows if report.collected else ()
    text = page.render_markdown(build_report_page(report, draw_plot(rows, _list_varying_columns(rows))))
    if len(text.encode()) <= MAX_PAGE_BYTES:
        return text
    return page.render_markdown(build_report_page(report))


def build_report_page(report: Report, plot: str | None = None) -> Page:
    """What happened and why, what remains, how it came about, the numbers, and where the files are."""
    blocks: list[Block] = [Paragraph(shorten_text(report.sentence, MAX_SENTENCE_CHARS), label=report.end)]
    findings = _list_findings(report)
    if findings:
        blocks.append(Entries(("finding", ""), findings))
    nodes = _list_nodes(report)
    if nodes:
        blocks.append(Table(nodes[0], nodes[1:]))
    blocks += build_hang_blocks(report)
    leftovers = [(leftover,) for leftover in _list_leftovers(report)]
    if leftovers:
        blocks.append(Entries(("left behind",), leftovers, label="left"))
    if report.steps:
        blocks.append(Entries(("step", "took", ""), _list_steps(report)))
    attempts = _list_attempts(report)
    if attempts:
        blocks.append(Entries(("attempt", ""), attempts))
    if report.collected:
        blocks += _build_metrics_blocks(report.collected.metrics, plot)
        logs = _list_logs(report.collected.logs)
        if logs:
            blocks.append(Entries(("log", "lines"), logs, label="log", code_column=0))
        tail = _get_failure_tail(report)
        if tail:
            blocks.append(Code([single_line(line, _MAX_QUOTE_CHARS) for line in tail]))
    blocks.append(Entries(("report",), [(f"{report.folder}/report.json",)], label="report", code_column=0))
    return Page(f"{report.profile}  {report.run}  {report.end} in {format_duration(report.seconds)}", blocks)


def _list_steps(report: Report) -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = []
    for step in select_ends(report.steps, _MAX_STEPS):
        rows.append((step.name, f"{format_duration(step.seconds):>9}", single_line(step.detail, _MAX_DETAIL_CHARS)))
    return rows


def render_metrics_page(job: str, rows: Sequence[Row]) -> str:
    """The curves and the last rows of a running job."""
    plot = draw_plot(rows, _list_varying_columns(rows))
    return page.render_markdown(Page(job, _build_metrics_blocks(Metrics(rows=tuple(rows)), plot)))


def _build_metrics_blocks(metrics: Metrics, plot: str | None) -> list[Block]:
    """The curves, the rows in columns, and the values that hold for the whole run."""
    blocks: list[Block] = []
    if plot:
        blocks.append(Picture("metrics", plot))
    if metrics.rows:
        header, rows = _list_table_cells(metrics)
        blocks.append(Table(header, rows))
    values = _list_summary_values(metrics)
    if values:
        blocks.append(Entries(("value", ""), values))
    return blocks


class _Entry(NamedTuple):
    """A line of the report: a label and its text."""

    label: str
    text: str


def _list_leftovers(report: Report) -> list[str]:
    """The leftovers of teardown, at most _MAX_LEFTOVERS, and the number of the others."""
    leftovers = [single_line(leftover, _MAX_DETAIL_CHARS) for leftover in report.leftovers[:_MAX_LEFTOVERS]]
    hidden_count = len(report.leftovers) - len(leftovers)
    if hidden_count:
        leftovers.append(f"and {hidden_count:,} more: see report.json")
    return leftovers


def _list_logs(files: Sequence[LogFile]) -> list[_Entry]:
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


def _list_attempts(report: Report) -> list[_Entry]:
    """How each attempt ended and on which machine; empty if there was only one attempt."""
    if len(report.attempts) < 2:
        return []
    return [
        _Entry(f"attempt {attempt.number}", single_line(_describe_attempt(attempt), _MAX_DETAIL_CHARS))
        for attempt in report.attempts
    ]


def _list_findings(report: Report) -> list[_Entry]:
    """The cause of a failure, checkpoints, warnings, the network, the trend, the archive, what was not sent."""
    entries: list[_Entry] = []
    if report.trend:
        entries.append(_Entry("trend", f"{report.trend.verdict}: {report.trend.sentence}"))
    if report.archive:
        entries.append(_Entry("archive", report.archive))
    entries += [_Entry("unsent", message) for message in select_ends(report.unsent, _MAX_LEFTOVERS)]
    short_entries = [_Entry(entry.label, single_line(entry.text, _MAX_DETAIL_CHARS)) for entry in entries]
    return [
        *_list_cause_entries(report),
        *_list_checkpoint_entries(report),
        *_list_warning_entries(report),
        *_list_container_failures(report),
        *_list_fabric_entries(report),
        *short_entries,
    ]


def _list_checkpoint_entries(report: Report) -> list[_Entry]:
    """Who asked the last attempt to stop, what it saved, and the checkpoint from which a run can continue."""
    if report.collected is None:
        return []
    entries: list[_Entry] = []
    stop = report.attempts[-1].outcome.stop
    saved_work = report.collected.saved_work
    if stop and saved_work:
        asked_at = datetime.fromtimestamp(stop.asked_at, UTC)
        entries.append(_Entry("stop", single_line(f"{asked_at:%H:%M:%S} UTC, {stop.author}", _MAX_DETAIL_CHARS)))
    if saved_work:
        entries.append(_Entry("saved", single_line(saved_work.sentence, _MAX_DETAIL_CHARS)))
    checkpoint = select_resume_checkpoint(report.collected.checkpoints)
    if checkpoint:
        proof = f"complete ({checkpoint.format})" if checkpoint.state == "complete" else "not verified"
        text = f"{checkpoint.name}, {proof}: {checkpoint.path}"
        entries.append(_Entry("checkpoint", single_line(text, 2 * _MAX_DETAIL_CHARS)))
    return entries


def _list_warning_entries(report: Report) -> list[_Entry]:
    """The warnings of the last attempt."""
    warnings = report.collected.warnings if report.collected else ()
    return [_Entry("warning", single_line(warning, 2 * _MAX_DETAIL_CHARS)) for warning in warnings]


def _list_fabric_entries(report: Report) -> list[_Entry]:
    """The verdict on the network, and the first line that proves it."""
    fabric = report.collected.fabric if report.collected else None
    if fabric is None:
        return []
    entries = [_Entry("fabric", single_line(f"{fabric.verdict}: {fabric.sentence}", _MAX_DETAIL_CHARS))]
    if fabric.proof:
        entries.append(_Entry("", single_line(fabric.proof, _MAX_DETAIL_CHARS)))
    return entries


def _list_nodes(report: Report) -> list[list[str]]:
    """The network of each node as a table with its header; empty if it is as promised."""
    fabric = report.collected.fabric if report.collected else None
    rows = list_node_rows(fabric) if fabric else []
    return [[single_line(cell, 4 * _MAX_CELL_CHARS) for cell in row] for row in rows]


def _list_container_failures(report: Report) -> list[_Entry]:
    """The failures of the tries of the job's own controller in the last attempt; empty if it tried only once."""
    outcome = report.attempts[-1].outcome if report.attempts else None
    if outcome is None or not outcome.status.retries:
        return []
    entries: list[_Entry] = []
    for failure in outcome.container_failures:
        failed_at = datetime.fromtimestamp(failure.failed_at, UTC)
        entries.append(_Entry("try", f"{failure.node} {describe_exit(failure.exit_code)} at {failed_at:%H:%M:%S} UTC"))
    return list(select_ends(entries, _MAX_STEPS))


def _list_cause_entries(report: Report) -> list[_Entry]:
    """The slug of a failed run's cause, whether another attempt may succeed, and the line that proves it."""
    failure = report.collected.failure if report.collected and report.end == "failed" else None
    if failure is None:
        return []
    entries = [_Entry("cause", f"{failure.cause}, {_describe_retry(failure)}")]
    if failure.line:
        entries.append(_Entry("proof", single_line(failure.line.strip(), _MAX_DETAIL_CHARS)))
    return entries


def _describe_retry(failure: Failure) -> str:
    """Whether another attempt may succeed, as far as the cause shows it."""
    if failure.retry:
        return "worth another attempt"
    if failure.cause in _UNEXPLAINED_CAUSES:
        return "which does not show whether another attempt would help"
    return "another attempt would not help"


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
