"""Which files of a run's folder are archived, and how journals of two machines are merged."""

import json
from pathlib import Path

import pytest

from torchyard.archive.contents import (
    build_journal_name,
    is_journal,
    is_log,
    is_record,
    list_ended_logs,
    list_origins,
    list_records,
    merge_journals,
    move_paths,
)


def event_line(timestamp: float, event: str = "step", **fields: str) -> bytes:
    return json.dumps({"at": timestamp, "event": event} | fields).encode() + b"\n"


@pytest.mark.parametrize(
    ("name", "is_record_name", "is_log_name"),
    [
        ("journal", False, False),
        ("attempt-2/plan.json", True, False),
        ("attempt-2/node-0/log", False, True),
        ("attempt-2/hang/hang.txt", True, False),
        ("attempt-2/hang/rank-0.json", False, False),
        ("attempt-2/node-0/spec.json", False, False),
        ("checkpoints/digits.pt", False, False),
        ("lock", False, False),
        ("attempt-1/../log", False, False),
        ("../journal", False, False),
        ("attempt-1/plan.json\n", False, False),
    ],
)
def test_only_records_and_logs_are_archived(name: str, is_record_name: bool, is_log_name: bool) -> None:
    """Checkpoints, locks and supervisors' files are not archived, and no name leads out of the folder."""
    assert (is_record(name), is_log(name)) == (is_record_name, is_log_name)


def test_each_process_has_its_own_journal() -> None:
    """The journal objects of two processes have two names, and no other file has such a name."""
    names = [build_journal_name("0"), build_journal_name("a1b2c3d4e5f6")]
    assert names == ["journal-0", "journal-a1b2c3d4e5f6"]
    assert [is_journal(name) for name in [*names, "journal", "journal-", "journal-../x"]] == [True, True] + [False] * 3


def test_logs_are_archived_once_their_job_has_ended(tmp_path: Path) -> None:
    """The log of an attempt without an outcome still grows."""
    for number in (1, 2):
        (tmp_path / f"attempt-{number}" / "node-0").mkdir(parents=True)
        (tmp_path / f"attempt-{number}" / "node-0" / "log").write_text("a line\n")
        (tmp_path / f"attempt-{number}" / "plan.json").write_text("{}")
    (tmp_path / "attempt-2" / "hang").mkdir()
    (tmp_path / "attempt-2" / "hang" / "stacks.txt").write_text("rank 0:\n")
    (tmp_path / "attempt-1" / "outcome.json").write_text("{}")
    (tmp_path / "attempt-1" / "other.json").write_text("{")
    assert list(list_ended_logs(tmp_path)) == ["attempt-1/node-0/log"]
    assert list(list_records(tmp_path)) == [
        "attempt-1/outcome.json",
        "attempt-1/plan.json",
        "attempt-2/hang/stacks.txt",
        "attempt-2/plan.json",
    ]


def test_journals_of_two_machines_are_merged() -> None:
    """The merged journal contains the lines of both once, in order, without torn lines."""
    shared = [event_line(1), event_line(2)]
    wait = event_line(4, "step", name="wait")
    end = event_line(5, "end")
    local = b"".join([*shared, wait])
    remote = b"".join([*shared, event_line(3), end, b'{"at": 6'])
    assert merge_journals(local, [remote, b"".join(shared)]) == b"".join([*shared, event_line(3), wait, end])


@pytest.mark.parametrize("ahead_s", [0.0, 3600.0, -3600.0])
def test_clock_of_another_machine_does_not_change_the_order(ahead_s: float) -> None:
    """A run that ended on another machine has ended, whatever its clock is, and a line that was not archived is older.

    The machine that had lost the run fetches the journal of the one that resumed it.
    """
    shared = [event_line(100, "start"), event_line(101, "step", name="submit")]
    not_archived = event_line(103, "step", name="wait")
    resumed = [event_line(at + ahead_s, event) for at, event in ((200, "start"), (201, "step"), (202, "end"))]
    merged = merge_journals(b"".join([*shared, not_archived]), [b"".join(shared), b"".join([*shared, *resumed])])
    assert merged == b"".join([*shared, not_archived, *resumed])


def test_journals_that_contradict_each_other_are_merged_by_time() -> None:
    """Journals that were edited by hand lose no line."""
    lines = [event_line(at) for at in (1, 2, 3)]
    merged = merge_journals(b"".join(lines[:2]), [lines[1] + lines[0] + lines[2]])
    assert sorted(merged.splitlines()) == sorted(line.strip() for line in lines)


def test_journal_with_every_line_is_not_changed() -> None:
    """A journal that contains every line of the archived one is returned as it is, with its torn line."""
    local = event_line(1) + event_line(2) + b"torn"
    assert merge_journals(local, [event_line(1), event_line(2)]) is local
    assert merge_journals(local, []) is local


def test_paths_in_records_lead_to_the_local_folder() -> None:
    """Paths in the folder in which a record was written are replaced, and other paths stay."""
    journal = event_line(1, "start", folder="/pod/runs/x-1") + event_line(2, "start", folder="/pod/runs/x-1")
    text = '{"log": "/pod/runs/x-1/attempt-1/node-0/log", "folder": "/pod/runs/x-1", "other": "/pod/runs/x-12/log"}'
    moved = move_paths(text, list_origins(journal), "/here/x-1")
    assert json.loads(moved) == {
        "log": "/here/x-1/attempt-1/node-0/log",
        "folder": "/here/x-1",
        "other": "/pod/runs/x-12/log",
    }
