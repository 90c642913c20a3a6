"""The last runs of a profile as a table and as a page."""

from pathlib import Path

import pytest

from tests.builders.histories import KEY, build_records
from torchyard.trend.records import history_path, store_record
from torchyard.trend.runs import build_runs_table, describe_runs, read_profile_records, render_runs


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three runs of `sample` with two nodes, the last of which failed; one with four; and a run of another profile."""
    usual = build_records([200.0, 201.0, 202.0])
    usual[2] = usual[2].model_copy(update={"end": "failed", "cause": "oom-host", "numbers": {}})
    usual[1] = usual[1].model_copy(update={"numbers": {"busbw": 201.0, "step": 3.0, "steps": 3.0}})
    larger = usual[0].model_copy(update={"key": KEY.model_copy(update={"nodes": "4x1"}), "at": 1.0, "run": "large"})
    other = usual[0].model_copy(update={"key": KEY.model_copy(update={"profile": "sample-2"}), "at": 2.0})
    for record in (*usual, larger, other):
        store_record(history_path(tmp_path, record.key), record)
    return tmp_path


def test_runs_of_all_histories_of_a_profile_are_listed_newest_first(runs: Path) -> None:
    """A row has the end, the cause of a failure, the duration and the numbers; another profile's runs are left out."""
    records = read_profile_records(runs, "sample")
    assert describe_runs(records) == "4 runs: 1 failed, 3 succeeded"
    header, rows = build_runs_table(records)
    assert header[1:] == ["run", "end", "cause", "took", "nodes", "busbw", "step"]
    assert [row[1:] for row in rows] == [
        ["sample-00000003", "failed", "oom-host", "1 min 00 s", "2x1", "", ""],
        ["sample-00000002", "succeeded", "", "1 min 00 s", "2x1", "201", "3"],
        ["sample-00000001", "succeeded", "", "1 min 00 s", "2x1", "200", "3"],
        ["large", "succeeded", "", "1 min 00 s", "4x1", "200", "3"],
    ]
    assert "| sample-00000003 | failed | oom-host |" in render_runs("sample", records)


def test_history_that_cannot_be_read_is_left_out(runs: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The others are shown, and a warning names the file."""
    history_path(runs, KEY.model_copy(update={"nodes": "8x1"})).mkdir()
    assert len(read_profile_records(runs, "sample")) == 4
    assert "cannot show a history" in caplog.text
