"""A history as a table for the terminal, and the number that it compares as a page for an orchestrator."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from torchyard.common import page
from torchyard.common.escaping import single_line
from torchyard.common.log import get_log
from torchyard.common.page import Block, Page, Paragraph, Picture, Table
from torchyard.model.trend import Trend
from torchyard.trend.night import evaluate_records, format_band, format_number
from torchyard.trend.plot import draw_trend
from torchyard.trend.records import History, HistoryKey, Record, read_history
from torchyard.trend.regression import JudgedValue

_MAX_ROWS = 30
_MAX_NUMBERS = 5  # columns of a table without a trend
_MAX_NAME_CHARS = 24
_MAX_CELL_CHARS = 60
_RUN_COLUMNS = ["when (UTC)", "run", "job", "seconds"]


def find_trend(history: History) -> Trend | None:
    """The trend of the last run that compared a number; None if none has."""
    for record in reversed(history.records):
        if record.trend:
            return record.trend
    return None


def build_table(history: History, trend: Trend | None) -> Table:
    """One row per run: its end time, its name, how the job ended, its duration, and its number with band and verdict.

    Without a trend, the first numbers of the last run are shown instead of one number.
    """
    recent = history.records[-_MAX_ROWS:]
    if trend is None:
        return _build_number_table(recent)
    nights = {record.identity: night for record, night in evaluate_records(history.records, trend)}
    rows = [_describe_run(record) + _describe_night(nights.get(record.identity)) for record in recent]
    return Table([*_RUN_COLUMNS, single_line(trend.value, _MAX_NAME_CHARS), "usual", "verdict"], rows)


def _build_number_table(records: Sequence[Record]) -> Table:
    names = list(records[-1].numbers)[:_MAX_NUMBERS] if records else []
    rows: list[list[str]] = []
    for record in records:
        numbers = [_format_optional_number(record.numbers.get(name)) for name in names]
        rows.append(_describe_run(record) + numbers)
    return Table(_RUN_COLUMNS + [single_line(name, _MAX_NAME_CHARS) for name in names], rows)


def render_history(path: str) -> str | None:
    """The history in a file as a page; None if no number is compared, or the file cannot be read."""
    try:
        history = read_history(Path(path))
    except OSError as error:
        get_log().warning("cannot show the history: %s", error)
        return None
    trend = find_trend(history)
    return render_page(history, trend) if trend else None


def render_page(history: History, trend: Trend) -> str:
    """A history with at least one record as Markdown: its key, the plot, and a table with the newest run first."""
    key = history.records[-1].key
    blocks: list[Block] = [Paragraph(describe_key(key))]
    plot = draw_trend(evaluate_records(history.records, trend), trend.value)
    if plot:
        blocks.append(Picture(single_line(trend.value, _MAX_NAME_CHARS), plot))
    table = build_table(history, trend)
    blocks.append(Table(table.header, table.rows[::-1]))
    return page.render_markdown(Page(key.profile, blocks))


def describe_key(key: HistoryKey) -> str:
    """The key as text for a page; the profile's name is its title."""
    values = (key.hardware, key.fabric, f"nodes x processes: {key.nodes}", key.image)
    return single_line(", ".join(value for value in values if value), 300)


def _describe_run(record: Record) -> list[str]:
    ended_at = datetime.fromtimestamp(record.at, UTC).strftime("%Y-%m-%d %H:%M")
    return [ended_at, single_line(record.run, _MAX_CELL_CHARS), single_line(record.end, 20), f"{record.seconds:.1f}"]


def _describe_night(night: JudgedValue | None) -> list[str]:
    """The cells for number, band and verdict; empty ones for a run that was not compared."""
    if night is None:
        return ["", "", ""]
    band_text = format_band(night.band) if night.band else ""
    return [format_number(night.value), band_text, night.verdict]


def _format_optional_number(value: float | None) -> str:
    return "" if value is None else format_number(value)
