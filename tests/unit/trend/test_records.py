"""The history on disk: one line per run, also with several writers."""

import os
import threading
from pathlib import Path

import pytest

from tests.builders.histories import KEY, build_records
from tests.conftest import Write, load
from tests.support.private_modes import list_accessible_to_others
from torchyard.loading.profile import load_profile
from torchyard.trend import records
from torchyard.trend.records import (
    HistoryKey,
    get_history_key,
    history_path,
    list_histories,
    read_history,
    store_record,
)

FOREIGN = [b"", b"{", b"[]", b"null", b'{"at": "noon"}', b"\xff\xfe", b"\0" * 40, b'{"at": 1, "run": "x"}']


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return history_path(tmp_path, KEY)


def test_records_are_read_as_they_were_stored(path: Path) -> None:
    """Every record is read in order, from files that only the user can read."""
    expected = build_records([1.0, 2.0, 3.0])
    assert [store_record(path, record) for record in expected] == expected
    assert read_history(path) == (tuple(expected), 0)
    assert list_accessible_to_others(path.parent) == []


def test_run_is_recorded_once(path: Path) -> None:
    """A run that ends again, as after a resume, keeps its first record; one that was started again gets another."""
    (first,) = build_records([200.0])
    store_record(path, first)
    assert store_record(path, first.model_copy(update={"numbers": {}, "end": "failed"})) == first
    store_record(path, first.model_copy(update={"began": first.began + 1}))
    assert len(read_history(path).records) == 2


@pytest.mark.parametrize("line", FOREIGN)
def test_foreign_line_is_skipped_and_counted(path: Path, line: bytes) -> None:
    """A line that is not a record is skipped and counted; the other lines are read."""
    first, second = build_records([1.0, 2.0])
    store_record(path, first)
    with path.open("ab") as file:
        file.write(line)
    store_record(path, second)
    assert read_history(path) == ((first, second), int(bool(line)))


def test_line_of_a_later_version_is_read(path: Path) -> None:
    """A record with keys that this version does not know is still compared with."""
    (first,) = build_records([1.0])
    store_record(path, first)
    path.write_text(path.read_text().replace('{"at"', '{"new": {"a": 1}, "at"', 1))
    assert read_history(path).records == (first,)


def test_long_history_is_read_from_its_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file that is too large, the last complete lines are read."""
    all_records = build_records(list(range(200)))
    path.parent.mkdir()
    path.write_text("".join(f"{record.model_dump_json()}\n" for record in all_records))
    monkeypatch.setattr(records, "MAX_READ_BYTES", 2_000)
    history = read_history(path)
    assert 3 < len(history.records) < 20
    assert (history.records, history.skipped) == (tuple(all_records[-len(history.records) :]), 0)


def test_two_writers_keep_all_lines(path: Path) -> None:
    """Runs that end at once each have their line, and the same run has one."""
    all_records = build_records(list(range(40)))
    threads = [
        threading.Thread(target=lambda: [store_record(path, record) for record in all_records]) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {record.run for record in read_history(path).records} == {record.run for record in all_records}
    assert len(path.read_text().splitlines()) == len(all_records)


def test_missing_history_is_empty_and_an_unreadable_one_is_not(path: Path) -> None:
    """A file that does not exist has no records; one that cannot be read is an error."""
    assert read_history(path) == ((), 0)
    path.mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        read_history(path)


def test_runs_with_one_key_share_a_history(write: Write) -> None:
    """Hardware, fabric, profile, nodes and image are the key; other keys of the profile are not."""
    oke = load_profile("yolov5-volcano")
    expected = {"profile": "yolov5-volcano", "hardware": "oke/bm-gpu-b4-8", "fabric": "host", "nodes": "2x1"}
    assert get_history_key(oke) == HistoryKey(**expected, image="ultralytics/yolov5:v7.0")
    changes = ({"nodes": 4}, {"processes": 2, "resources.gpus": 2}, {"fabric": "vf"}, {"image": "a/b:1"})
    stems = {get_history_key(load_profile("yolov5-volcano", change)).stem for change in ({}, *changes)}
    assert len(stems) == 1 + len(changes)
    assert get_history_key(load_profile("yolov5-volcano", {"args": []})) == get_history_key(oke)
    assert get_history_key(load(write())) == HistoryKey(profile="sample", nodes="1x1")


def test_stem_is_a_name_for_files_and_artifacts() -> None:
    """A stem has only letters, digits and single dashes, is short, and differs where the keys do."""
    long = HistoryKey(profile="a" * 40, hardware="../" * 100, nodes="2:8x4", image="x")
    assert long.stem.replace("-", "").isalnum()
    assert len(long.stem) < 120
    assert long.stem != HistoryKey(profile="a" * 40, hardware="../" * 100, nodes="2:8x4", image="y").stem


def test_histories_are_listed(tmp_path: Path, path: Path) -> None:
    """All files of the folder are listed; a runs folder without runs has none."""
    assert list_histories(tmp_path) == []
    store_record(path, build_records([1.0])[0])
    assert list_histories(tmp_path) == [path]
    assert os.listdir(path.parent) == [path.name]
