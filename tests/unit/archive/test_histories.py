"""The numbers of runs in the archive, and in the histories here."""

from pathlib import Path

from tests.histories import KEY, recorded
from torchyard.archive.histories import build_record_path, fetch_histories, fetch_history
from torchyard.archive.store import Store
from torchyard.trend.records import Record, history_path, keep_record, read_history


def write_records(store: Store, records: list[Record]) -> None:
    for record in records:
        store.write(build_record_path(record), record.model_dump_json(exclude_defaults=True).encode())


def test_history_here_gets_the_runs_of_other_machines(store: Store, tmp_path: Path) -> None:
    """In order of time, each once, also if one of them is here already and is the newest."""
    records = recorded([1.0, 2.0, 3.0])
    write_records(store, records)
    keep_record(history_path(tmp_path, KEY), records[2])
    for _ in range(2):
        fetch_history(store, tmp_path, KEY)
    assert list(read_history(history_path(tmp_path, KEY)).records) == records
    assert len(history_path(tmp_path, KEY).read_text().splitlines()) == 3


def test_only_the_newest_runs_are_fetched(store: Store, tmp_path: Path) -> None:
    """A history of years costs no more than a comparison can use."""
    records = recorded([float(value) for value in range(103)])
    write_records(store, records)
    fetch_history(store, tmp_path, KEY)
    assert list(read_history(history_path(tmp_path, KEY)).records) == records[3:]


def test_every_history_is_fetched(store: Store, tmp_path: Path) -> None:
    """One listing finds them all; what holds no record of its history writes no file."""
    write_records(store, recorded([1.0]))
    store.write("history/Up..Here/1-x.json", b"{}")
    fetch_histories(store, tmp_path)
    assert [path.name for path in (tmp_path / "history").iterdir()] == [f"{KEY.stem}.jsonl"]


def test_record_that_cannot_be_read_is_skipped(store: Store, tmp_path: Path) -> None:
    """The others count."""
    write_records(store, recorded([1.0]))
    store.write(f"history/{KEY.stem}/1-x.json", b"{")
    fetch_history(store, tmp_path, KEY)
    assert len(read_history(history_path(tmp_path, KEY)).records) == 1
