"""`torchyard trend`: the histories of runs, and one of them as a table or as a plot."""

from collections.abc import Sequence
from pathlib import Path

from torchyard.archive.histories import fetch_histories
from torchyard.archive.store import open_store
from torchyard.common.escaping import strip_control_codes
from torchyard.model.errors import FolderError, ProfileError
from torchyard.model.trend import Trend
from torchyard.run.folder import runs_folder
from torchyard.trend.night import judge_records
from torchyard.trend.page import build_table, describe_key, find_trend
from torchyard.trend.plot import draw_trend
from torchyard.trend.records import History, history_folder, list_histories, read_history


def show_histories() -> int:
    """List every history: its name, its runs, and what these have in common."""
    _fetch_archived()
    found = [(path, _read(path)) for path in list_histories(runs_folder())]
    if not found:
        print(f"there is no history in {history_folder(runs_folder())}: the first run begins one")
    rows = [
        (
            path.stem,
            f"{len(each.records)} run{'s' if len(each.records) > 1 else ''}",
            describe_key(each.records[-1].key),
        )
        for path, each in found
        if each.records
    ]
    _print_columns([list(row) for row in rows])
    return 0


def show_history(name: str, trend: Trend | None, plot: str | None) -> int:
    """Show the history with this name, or the only one of this profile; its number is the one last compared.

    ProfileError if there is none, or more than one.
    """
    _fetch_archived()
    path = _find_history(name)
    history = _read(path)
    trend = trend or find_trend(history)
    if plot is not None:
        return _save_plot(history, trend, Path(plot))
    head, rows = build_table(history, trend)
    _print_columns([head, *rows])
    print(f"{path}" + (f": {history.skipped} lines cannot be read" if history.skipped else ""))
    return 0


def _fetch_archived() -> None:
    """Add what the archive has of runs on other machines. ArchiveError."""
    if store := open_store():
        fetch_histories(store, runs_folder())


def _find_history(name: str) -> Path:
    runs = runs_folder()
    name = Path(name).stem if name.endswith((".yaml", ".yml")) else name
    found = [path for path in list_histories(runs) if path.stem == name]
    found = found or [
        path for path in list_histories(runs) if any(each.key.profile == name for each in _read(path).records[-1:])
    ]
    if len(found) == 1:
        return found[0]
    known = ", ".join(path.stem for path in found or list_histories(runs)) or "none"
    many = (
        f"{len(found)} histories are of this profile: name one of" if found else "there is no such history; there are:"
    )
    raise ProfileError(name, (f"{many} {known}",))


def _read(path: Path) -> History:
    try:
        return read_history(path)
    except OSError as error:
        raise FolderError(str(path), error.strerror or str(error), "make it readable") from error


def _save_plot(history: History, trend: Trend | None, path: Path) -> int:
    if trend is None:
        raise ProfileError("--plot", ("no number was compared so far: choose one with --value NAME",))
    svg = draw_trend(judge_records(history.records, trend), trend.value)
    if svg is None:
        raise ProfileError("--plot", (f"fewer than two runs that succeeded have the number {trend.value}",))
    try:
        path.write_text(svg, encoding="utf-8")
    except OSError as error:
        raise ProfileError("--plot", (f"{path} cannot be written: {error.strerror or error}",)) from error
    print(path)
    return 0


def _print_columns(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print(
            strip_control_codes("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
        )
