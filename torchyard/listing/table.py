"""The list of runs as lines of text: pure functions."""

from collections.abc import Sequence

from torchyard.common.escaping import single_line
from torchyard.common.text import format_duration
from torchyard.listing.listed_run import ListedRun

_HEADER = ("RUN", "STATE", "NODES", "PROGRESS", "LEFT", "AGE", "USER", "WHERE")
# The columns that a narrow terminal cuts, in this order, and the width down to which each is cut.
_NARROWED_COLUMNS = (("PROGRESS", 32), ("WHERE", 8), ("PROGRESS", 14))
_GAP = "  "
_CUT_MARK = "..."
_MAX_CELL_CHARS = 300  # even without a width


def format_table(runs: Sequence[ListedRun], now: float, *, width: int | None) -> list[str]:
    """A header, and a line for each run; a column in which every cell is empty is left out.

    `now`: in seconds since the epoch. `width`: of the terminal: the progress and the location are cut to it, at last
    the line itself; None does not cut.
    """
    rows = [_format_cells(run, now) for run in runs]
    columns: dict[str, list[str]] = {}
    for index, title in enumerate(_HEADER):
        cells = [row[index] for row in rows]
        if any(cells) or not rows:
            columns[title] = [title, *cells]
    widths = {title: max(map(len, cells)) for title, cells in columns.items()}
    if width is not None:
        _narrow(widths, width)
    lines: list[str] = []
    for index in range(len(rows) + 1):
        cells = [_cut(columns[title][index], widths[title]).ljust(widths[title]) for title in columns]
        line = _GAP.join(cells).rstrip()
        lines.append(line if width is None else _cut(line, width))
    return lines


def _narrow(widths: dict[str, int], width: int) -> None:
    """Reduce the widths of columns, by title, until a line has `width` characters, as far as that is possible."""
    for title, min_width in _NARROWED_COLUMNS:
        excess = sum(widths.values()) + len(_GAP) * (len(widths) - 1) - width
        if title in widths and excess > 0:
            widths[title] = max(min(widths[title], min_width), widths[title] - excess)


def _format_cells(run: ListedRun, now: float) -> tuple[str, ...]:
    age = "" if run.started_at is None else format_short_duration(now - run.started_at)
    cells = (
        run.name,
        run.state,
        _format_size(run),
        _describe_progress(run),
        _format_remaining(run, now),
        age,
        run.user,
        " ".join(filter(None, (run.launcher, run.location))),
    )
    return tuple(single_line(cell, _MAX_CELL_CHARS) for cell in cells)


def _format_size(run: ListedRun) -> str:
    """`2 x 8` for nodes and the processes of each; `2` if the processes are unknown."""
    if run.nodes is None:
        return ""
    return str(run.nodes) if run.processes is None else f"{run.nodes} x {run.processes}"


def _describe_progress(run: ListedRun) -> str:
    """What the job has done, and what should be known about the run; how an ended run ended, and how long it took."""
    if run.ended_at is not None and run.started_at is not None:
        return f"{format_duration(max(run.ended_at - run.started_at, 0.0))}: {run.note}"
    if run.progress is None or run.state not in ("running", "ending", "lost"):
        return run.note
    return "; ".join(filter(None, (run.progress.done or run.progress.values, run.note)))


def _format_remaining(run: ListedRun, now: float) -> str:
    """The time left of a job that runs; empty if it is unknown, or if the estimate has passed."""
    if run.state != "running" or run.progress is None or run.progress.remaining_s is None:
        return ""
    remaining_s = run.progress.remaining_s - max(now - run.progress.updated_at, 0.0)
    return format_short_duration(remaining_s) if remaining_s > 0 else ""


def format_short_duration(seconds: float) -> str:
    """Seconds as `38s`, `12m`, `2h05m` or `3d04h`, for a column."""
    minutes = int(max(seconds, 0.0)) // 60
    hours = minutes // 60
    if minutes == 0:
        return f"{int(max(seconds, 0.0))}s"
    if hours == 0:
        return f"{minutes}m"
    if hours < 24:
        return f"{hours}h{minutes % 60:02}m"
    return f"{hours // 24}d{hours % 24:02}h"


def _cut(text: str, width: int) -> str:
    """The text, or its beginning and a mark if it is longer than `width`."""
    return text if len(text) <= width else text[: max(width - len(_CUT_MARK), 0)] + _CUT_MARK[:width]
