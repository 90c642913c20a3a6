"""`torchyard trend`: the histories of runs, and one of them as a table or as a plot."""

from collections.abc import Iterable
from pathlib import Path

from torchyard.archive.histories import fetch_histories
from torchyard.archive.store import open_store
from torchyard.cli.documents import HistoryDocument, TrendDocument, TrendRun, print_document
from torchyard.cli.exit_codes import ExitCode
from torchyard.common.escaping import strip_control_codes
from torchyard.common.text import align_columns
from torchyard.model.errors import FolderError, ProfileError
from torchyard.model.finding import Finding
from torchyard.model.trend import Trend
from torchyard.run.folder import runs_folder
from torchyard.trend.night import evaluate_records
from torchyard.trend.page import build_table, describe_key, find_trend
from torchyard.trend.plot import draw_trend
from torchyard.trend.records import History, history_folder, list_histories, read_history


def show_histories(*, as_json: bool) -> int:
    """List every history: its name, the number of its runs, and their common properties."""
    _fetch_archived()
    paths = list_histories(runs_folder())
    if as_json:
        histories = [(path, _read(path)) for path in paths]
        documents = [_describe_history(path, history) for path, history in histories if history.records]
        print_document(TrendDocument(histories=tuple(documents)))
        return ExitCode.SUCCESS
    if not paths:
        print(f"there is no history in {history_folder(runs_folder())}: the first run starts one")
    rows: list[list[str]] = []
    for path in paths:
        records = _read(path).records
        if records:
            noun = "run" if len(records) == 1 else "runs"
            rows.append([path.stem, f"{len(records)} {noun}", describe_key(records[-1].key)])
    _print_lines(align_columns(rows, indent=""))
    return ExitCode.SUCCESS


def show_history(name: str, trend: Trend | None, plot: str | None, *, as_json: bool) -> int:
    """Show the history with this name, or the only one of this profile; the default number is the last compared one.

    ProfileError if none exists, or more than one.
    """
    _fetch_archived()
    path = _find_history(name)
    history = _read(path)
    trend = trend or find_trend(history)
    if plot is not None:
        _save_plot(history, trend, Path(plot))
    if as_json:
        print_document(TrendDocument(histories=(_describe_runs(path, history, trend, plot or ""),)))
    elif plot is not None:
        print(plot)
    else:
        table = build_table(history, trend)
        _print_lines(align_columns([table.header, *table.rows], indent=""))
        suffix = f": {history.skipped} lines cannot be read" if history.skipped else ""
        print(f"{path}{suffix}")
    return ExitCode.SUCCESS


def _describe_history(path: Path, history: History) -> HistoryDocument:
    """The document of a history with at least one run, without its runs."""
    return HistoryDocument(
        name=path.stem,
        path=str(path),
        key=history.records[-1].key,
        run_count=len(history.records),
        unreadable_lines=history.skipped,
        trend=find_trend(history),
    )


def _describe_runs(path: Path, history: History, trend: Trend | None, plot: str) -> HistoryDocument:
    """The document of a history with its runs, compared by `trend`."""
    nights = {item.record.identity: item.night for item in evaluate_records(history.records, trend)} if trend else {}
    runs: list[TrendRun] = []
    for record in history.records:
        night = nights.get(record.identity)
        if night is None:
            runs.append(TrendRun(record=record))
            continue
        low = night.band.low if night.band else None
        high = night.band.high if night.band else None
        runs.append(TrendRun(record=record, value=night.value, usual_low=low, usual_high=high, verdict=night.verdict))
    document = _describe_history(path, history)
    return document.model_copy(update={"trend": trend, "runs": tuple(runs), "plot": plot})


def _fetch_archived() -> None:
    """Add the archived runs of other machines. ArchiveError if the archive cannot be read."""
    store = open_store()
    if store:
        fetch_histories(store, runs_folder())


def _find_history(name: str) -> Path:
    """The file of a history, by its own name or its profile's. ProfileError if none or several match."""
    if name.endswith((".yaml", ".yml")):
        name = Path(name).stem
    all_paths = list_histories(runs_folder())
    paths = [path for path in all_paths if path.stem == name]
    if not paths:
        paths = [path for path in all_paths if _is_of_profile(path, name)]
    if len(paths) == 1:
        return paths[0]
    if paths:
        message = f"{len(paths)} histories are of this profile: name one of {', '.join(path.stem for path in paths)}"
    else:
        choices = ", ".join(path.stem for path in all_paths) or "none"
        message = f"there is no such history; there are: {choices}"
    raise ProfileError(name, (Finding("", message),))


def _is_of_profile(path: Path, profile: str) -> bool:
    """Whether the last run of a history is of this profile."""
    records = _read(path).records
    return bool(records) and records[-1].key.profile == profile


def _read(path: Path) -> History:
    try:
        return read_history(path)
    except OSError as error:
        raise FolderError(str(path), error.strerror or str(error), "make it readable") from error


def _save_plot(history: History, trend: Trend | None, path: Path) -> None:
    """Write the plot as SVG. ProfileError if there is nothing to draw, or it cannot be written."""
    if trend is None:
        raise ProfileError("--plot", (Finding("", "no number was compared so far: choose one with --value NAME"),))
    svg = draw_trend(evaluate_records(history.records, trend), trend.value)
    if svg is None:
        raise ProfileError(
            "--plot", (Finding("", f"fewer than two runs that succeeded have the number {trend.value}"),)
        )
    try:
        path.write_text(svg, encoding="utf-8")
    except OSError as error:
        raise ProfileError("--plot", (Finding("", f"{path} cannot be written: {error.strerror or error}"),)) from error


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(strip_control_codes(line))
