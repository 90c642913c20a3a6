"""The last runs of a profile as a page for an orchestrator: how each ended and why, its duration and its numbers."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from torchyard.common import page
from torchyard.common.escaping import single_line
from torchyard.common.log import get_log
from torchyard.common.page import Page, Table
from torchyard.common.text import format_duration
from torchyard.trend.night import format_number
from torchyard.trend.records import Record, list_histories, read_history

_MAX_RUNS = 30
_MAX_NUMBERS = 6
_MAX_CELL_CHARS = 60
_MAX_NAME_CHARS = 24
_COLUMNS = ("when (UTC)", "run", "end", "cause", "took", "nodes", "fabric")


def read_profile_records(runs: Path, profile: str) -> list[Record]:
    """The last `_MAX_RUNS` runs of a profile with any hardware, nodes and image, the newest first.

    `runs`: the folder of the runs. A history that cannot be read is left out, with a warning in the log.
    """
    records: list[Record] = []
    for path in list_histories(runs):
        try:
            history = read_history(path)
        except OSError as error:
            get_log().warning("cannot show a history: %s", error)
            continue
        records += [record for record in history.records if record.key.profile == profile]
    records.sort(key=lambda record: record.at, reverse=True)
    return records[:_MAX_RUNS]


def render_runs(profile: str, records: Sequence[Record]) -> str:
    """The runs as a table in Markdown; there is at least one record."""
    return page.render_markdown(Page(profile, [build_runs_table(records)]))


def describe_runs(records: Sequence[Record]) -> str:
    """`10 runs: 7 succeeded, 2 failed, 1 cancelled`"""
    counts: dict[str, int] = {}
    for record in records:
        counts[record.end] = counts.get(record.end, 0) + 1
    ends = ", ".join(f"{count} {single_line(end, _MAX_NAME_CHARS)}" for end, count in counts.items())
    noun = "run" if len(records) == 1 else "runs"
    return f"{len(records)} {noun}: {ends}"


def build_runs_table(records: Sequence[Record]) -> Table:
    """One row per run, without empty columns; the numbers are those of the first run that has any."""
    names: list[str] = []
    for record in records:
        if record.numbers:
            names = [name for name in record.numbers if not _is_total(name, record)][:_MAX_NUMBERS]
            break
    rows = [[*_describe_run(record), *_list_numbers(record, names)] for record in records]
    header = [*_COLUMNS, *(single_line(name, _MAX_NAME_CHARS) for name in names)]
    used = [index for index in range(len(header)) if any(row[index] for row in rows)]
    return Table([header[index] for index in used], [[row[index] for index in used] for row in rows])


def _describe_run(record: Record) -> list[str]:
    ended_at = datetime.fromtimestamp(record.at, UTC).strftime("%Y-%m-%d %H:%M")
    key = record.key
    cells = (ended_at, record.run, record.end, record.cause, format_duration(record.seconds), key.nodes, key.fabric)
    return [single_line(cell, _MAX_CELL_CHARS) for cell in cells]


def _is_total(name: str, record: Record) -> bool:
    """Whether a number is the total of another one, as `epochs` of `epoch`."""
    return name.endswith("s") and name.removesuffix("s") in record.numbers


def _list_numbers(record: Record, names: Sequence[str]) -> list[str]:
    return [format_number(record.numbers[name]) if name in record.numbers else "" for name in names]
