"""The numbers of runs in the archive: one object per run, `history/KEY/BEGAN-RUN.json`.

On this machine a history is one file, to which lines are appended. An object in a store cannot be appended to, and two
runs may end at the same time, so each run has its own object.
"""

from pathlib import Path

from pydantic import ValidationError

from torchyard.archive.store import HISTORY, Store
from torchyard.common.log import get_log
from torchyard.model.errors import ArchiveError
from torchyard.trend.records import HistoryKey, Record, RunIdentity, add_records, history_path, read_history

_MAX_RECORDS = 100  # of a history, the newest: a comparison looks at 30 runs


def build_record_path(record: Record) -> str:
    """The path of a run's numbers in the archive."""
    return f"{HISTORY}/{record.key.stem}/{_build_file_name(record.identity)}"


def _build_file_name(run: RunIdentity) -> str:
    return f"{run.started_at:016.3f}-{run.name}.json"


def fetch_history(store: Store, runs: Path, key: HistoryKey) -> None:
    """Add other machines' runs to a history on this machine: one listing, and the newest records that are missing."""
    _add_missing(store, history_path(runs, key), list(store.list_files(f"{HISTORY}/{key.stem}")))


def fetch_histories(store: Store, runs: Path) -> None:
    """Add other machines' runs to every history that the archive contains."""
    names_by_stem: dict[str, list[str]] = {}
    for path in store.list_files(HISTORY):
        stem, _, name = path.partition("/")
        names_by_stem.setdefault(stem, []).append(name)
    for stem, names in names_by_stem.items():
        _add_missing(store, runs / HISTORY / f"{stem}.jsonl", names)


def _add_missing(store: Store, path: Path, names: list[str]) -> None:
    """Add the records of the archived files `names` to the history at `path`. ArchiveError if that fails."""
    records: list[Record] = []
    try:
        present_names = {_build_file_name(present.identity) for present in read_history(path).records}
        missing_names = [name for name in sorted(names)[-_MAX_RECORDS:] if name not in present_names]
        contents = store.read_all([f"{HISTORY}/{path.stem}/{name}" for name in missing_names])
        for data in contents.values():
            record = _parse_record(data)
            if record and record.key.stem == path.stem:
                records.append(record)
        add_records(path, records)
    except OSError as error:
        raise ArchiveError(store.url, f"cannot add its records to {path}: {error}") from error
    if len(records) < len(missing_names):
        get_log().warning("%s: %d records in the archive cannot be read", path.stem, len(missing_names) - len(records))


def _parse_record(data: bytes) -> Record | None:
    """Parse a record; None if it is not valid."""
    try:
        return Record.model_validate_json(data)
    except ValidationError:
        return None
