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


def name_record(record: Record) -> str:
    """Where the archive has a run's numbers."""
    return f"{HISTORY}/{record.key.stem}/{_name(record.identity)}"


def _name(run: RunIdentity) -> str:
    return f"{run.began:016.3f}-{run.name}.json"


def fetch_history(store: Store, runs: Path, key: HistoryKey) -> None:
    """Add to a history here what the archive has of other machines' runs: one listing, the newest records."""
    _add_missing(store, history_path(runs, key), list(store.list_files(f"{HISTORY}/{key.stem}")))


def fetch_histories(store: Store, runs: Path) -> None:
    """The same for every history of the archive."""
    found: dict[str, list[str]] = {}
    for each in store.list_files(HISTORY):
        stem, _, name = each.partition("/")
        found.setdefault(stem, []).append(name)
    for stem, names in found.items():
        _add_missing(store, runs / HISTORY / f"{stem}.jsonl", names)


def _add_missing(store: Store, path: Path, names: list[str]) -> None:
    try:
        known = {_name(each.identity) for each in read_history(path).records}
        new = [name for name in sorted(names)[-_MAX_RECORDS:] if name not in known]
        found = store.read_all([f"{HISTORY}/{path.stem}/{name}" for name in new])
        records = [record for data in found.values() if (record := _read_record(data)) and record.key.stem == path.stem]
        add_records(path, records)
    except OSError as error:
        raise ArchiveError(store.url, f"{path} cannot be completed from it: {error}") from error
    if len(records) < len(new):
        get_log().warning("%s: %d records in the archive cannot be read", path.stem, len(new) - len(records))


def _read_record(data: bytes) -> Record | None:
    try:
        return Record.model_validate_json(data)
    except ValidationError:
        return None
