"""A history as a table for the terminal, and as a page for an orchestrator, with the plot."""

import base64
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from torchyard.common.escaping import escape_markdown, format_markdown_table, single_line
from torchyard.common.log import get_log
from torchyard.model.trend import Trend
from torchyard.trend.night import evaluate_records, format_band, format_number
from torchyard.trend.plot import draw_trend
from torchyard.trend.records import History, HistoryKey, Record, read_history
from torchyard.trend.regression import JudgedValue

_MAX_ROWS, _MAX_NUMBERS, _MAX_CELL_CHARS = 30, 5, 60
_MAX_PAGE_BYTES = 200_000
_NO_TREND_HINT = "no number is compared: `trend: {value: NAME}` in the profile chooses one"


class Table(NamedTuple):
    """The last runs of a history, the newest last."""

    header: list[str]
    rows: list[list[str]]


def find_trend(history: History) -> Trend | None:
    """What the last run that compared a number has compared."""
    return next((record.trend for record in reversed(history.records) if record.trend), None)


def build_table(history: History, trend: Trend | None) -> Table:
    """One row per run: when, which, its end and time, and its number beside what was usual; else its numbers."""
    recent = history.records[-_MAX_ROWS:]
    if trend is None:
        names = list(recent[-1].numbers)[:_MAX_NUMBERS] if recent else []
        rows = [
            [*_describe_run(record), *(_format_optional_number(record.numbers.get(name)) for name in names)]
            for record in recent
        ]
        return Table(
            ["when (UTC)", "run", "job", "seconds", *(single_line(number_name, 24) for number_name in names)], rows
        )
    nights = {record.identity: night for record, night in evaluate_records(history.records, trend)}
    compared_rows = [[*_describe_run(record), *_describe_night(nights.get(record.identity))] for record in recent]
    return Table(
        ["when (UTC)", "run", "job", "seconds", single_line(trend.value, 24), "usual", "verdict"], compared_rows
    )


def render_history(path: str) -> str:
    """The history in a file as a page; empty if it has no number, or cannot be read."""
    try:
        history = read_history(Path(path))
    except OSError as error:
        get_log().warning("the history is not shown: %s", error)
        return ""
    return render_page(history, find_trend(history)) if any(record.numbers for record in history.records) else ""


def render_page(history: History, trend: Trend | None) -> str:
    """The records of a history, at least one, as Markdown: what they have in common, the plot, and a table."""
    key = history.records[-1].key
    lines = [f"# {escape_markdown(key.profile)}", escape_markdown(describe_key(key)), ""]
    lines += [escape_markdown(_NO_TREND_HINT), ""] if trend is None else _render_plot(history, trend)
    head, rows = build_table(history, trend)
    return "\n".join([*lines, *format_markdown_table(head, reversed(rows))])


def describe_key(key: HistoryKey) -> str:
    """What the runs of a history have in common."""
    parts = (key.hardware, key.fabric, f"nodes x processes: {key.nodes}", key.image)
    return single_line(", ".join(filter(None, parts)), 300)


def _render_plot(history: History, trend: Trend) -> list[str]:
    svg = draw_trend(evaluate_records(history.records, trend), trend.value)
    if svg is None or len(svg) > _MAX_PAGE_BYTES / 2:  # base64 and the table need the rest
        return []
    plot_base64 = base64.b64encode(svg.encode()).decode()
    return [f"![{escape_markdown(trend.value, 40)}](data:image/svg+xml;base64,{plot_base64})", ""]


def _describe_run(record: Record) -> list[str]:
    ended_at = datetime.fromtimestamp(record.at, UTC).strftime("%Y-%m-%d %H:%M")
    return [ended_at, single_line(record.run, _MAX_CELL_CHARS), single_line(record.end, 20), f"{record.seconds:.1f}"]


def _describe_night(night: JudgedValue | None) -> Sequence[str]:
    if night is None:
        return ("", "", "")
    return (format_number(night.value), format_band(night.band) if night.band else "", night.verdict)


def _format_optional_number(value: float | None) -> str:
    return "" if value is None else format_number(value)
