"""The numbers of runs in the archive: one object per run, `history/KEY/BEGAN-RUN.json`.

The file of a history here is appended to, which an object cannot be; and two runs may end at once.
"""

from pathlib import Path

from pydantic import ValidationError

from torchyard.archive.store import HISTORY, Store
from torchyard.common.log import get_log
from torchyard.model.errors import ArchiveError
from torchyard.trend.records import HistoryKey, Record, RunIdentity, add_records, history_path, read_history

_MAX_RECORDS = 100  # of a history, the newest: a comparison looks at 30 runs


def build_record_path(record: Record) -> str:
    """Where the archive has a run's numbers."""
    return f"{HISTORY}/{record.key.stem}/{_build_file_name(record.identity)}"


def _build_file_name(run: RunIdentity) -> str:
    return f"{run.started_at:016.3f}-{run.name}.json"


def fetch_history(store: Store, runs: Path, key: HistoryKey) -> None:
    """Add to a history here what the archive has of other machines' runs: one listing, the newest records."""
    _add_missing(store, history_path(runs, key), list(store.list_files(f"{HISTORY}/{key.stem}")))


def fetch_histories(store: Store, runs: Path) -> None:
    """The same for every history of the archive."""
    names_by_stem: dict[str, list[str]] = {}
    for path in store.list_files(HISTORY):
        stem, _, name = path.partition("/")
        names_by_stem.setdefault(stem, []).append(name)
    for stem, names in names_by_stem.items():
        _add_missing(store, runs / HISTORY / f"{stem}.jsonl", names)


def _add_missing(store: Store, path: Path, names: list[str]) -> None:
    try:
        present_names = {_build_file_name(present.identity) for present in read_history(path).records}
        missing_names = [name for name in sorted(names)[-_MAX_RECORDS:] if name not in present_names]
        contents = store.read_all([f"{HISTORY}/{path.stem}/{name}" for name in missing_names])
        records = [
            record for data in contents.values() if (record := _parse_record(data)) and record.key.stem == path.stem
        ]
        add_records(path, records)
    except OSError as error:
        raise ArchiveError(store.url, f"{path} cannot be completed from it: {error}") from error
    if len(records) < len(missing_names):
        get_log().warning("%s: %d records in the archive cannot be read", path.stem, len(missing_names) - len(records))


def _parse_record(data: bytes) -> Record | None:
    try:
        return Record.model_validate_json(data)
    except ValidationError:
        return None
