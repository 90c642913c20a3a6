"""The numbers of runs in the archive, and in this machine's histories."""

from pathlib import Path

from tests.builders.histories import KEY, build_records
from torchyard.archive.histories import build_record_path, fetch_histories, fetch_history
from torchyard.archive.store import Store
from torchyard.trend.records import Record, history_path, read_history, store_record


def write_records(store: Store, records: list[Record]) -> None:
    for record in records:
        store.write(build_record_path(record), record.model_dump_json(exclude_defaults=True).encode())


def test_local_history_gets_the_runs_of_other_machines(store: Store, tmp_path: Path) -> None:
    """The local history contains each run once, in order of time, even if it had the newest one before."""
    records = build_records([1.0, 2.0, 3.0])
    write_records(store, records)
    store_record(history_path(tmp_path, KEY), records[2])
    for _ in range(2):
        fetch_history(store, tmp_path, KEY)
    assert list(read_history(history_path(tmp_path, KEY)).records) == records
    assert len(history_path(tmp_path, KEY).read_text().splitlines()) == 3


def test_only_the_newest_runs_are_fetched(store: Store, tmp_path: Path) -> None:
    """Of a long history only the newest 100 runs are fetched."""
    records = build_records([float(value) for value in range(103)])
    write_records(store, records)
    fetch_history(store, tmp_path, KEY)
    assert list(read_history(history_path(tmp_path, KEY)).records) == records[3:]


def test_every_history_is_fetched(store: Store, tmp_path: Path) -> None:
    """All histories are fetched, and one without a valid record creates no file."""
    write_records(store, build_records([1.0]))
    store.write("history/Up..Here/1-x.json", b"{}")
    fetch_histories(store, tmp_path)
    assert [path.name for path in (tmp_path / "history").iterdir()] == [f"{KEY.stem}.jsonl"]


def test_record_that_cannot_be_read_is_skipped(store: Store, tmp_path: Path) -> None:
    """A record that cannot be read does not prevent that the others are fetched."""
    write_records(store, build_records([1.0]))
    store.write(f"history/{KEY.stem}/1-x.json", b"{")
    fetch_history(store, tmp_path, KEY)
    assert len(read_history(history_path(tmp_path, KEY)).records) == 1
