"""Checkpoints in a job's logs: what recorders and rank 0 report, and from which one an attempt may continue."""

import json
from typing import Any

import pytest

from torchyard.diagnosis.checkpoints import CheckpointReader, select_resume_checkpoint
from torchyard.model.checkpoint import Checkpoint, CheckpointState
from torchyard.model.hang import RECORD_PREFIX


def build_record(path: str, state: CheckpointState = "complete", **fields: Any) -> str:
    """A line as a recorder prints it."""
    record = {"kind": "checkpoint", "timestamp": 2.0, "path": path, "step": None, "format": "dcp", "bytes": 10}
    record |= {"state": state, "problem": None, "seconds": 0.5, "saved_at": 1.0}
    return RECORD_PREFIX + json.dumps(record | fields, separators=(",", ":"))


def build_checkpoint(
    path: str,
    state: CheckpointState = "complete",
    saved_at: float = 1.0,
    step: int | None = None,
    *,
    is_observed: bool = True,
) -> Checkpoint:
    return Checkpoint(path=path, state=state, saved_at=saved_at, step=step, is_observed=is_observed)


def test_latest_record_of_a_checkpoint_counts() -> None:
    """A checkpoint that was complete and is torn by a later save is torn."""
    reader = CheckpointReader()
    reader.add_record(build_record("/c/last.pt", step=5))
    reader.add_record(build_record("/c/other.pt"))
    reader.add_record(build_record("/c/last.pt", "torn", problem="it ends early", format=""))
    reader.add_printed('{"checkpoint": "/c/last.pt"}', 7.0)
    assert [(checkpoint.path, checkpoint.state) for checkpoint in reader.checkpoints] == [
        ("/c/other.pt", "complete"),
        ("/c/last.pt", "torn"),
    ]
    assert (reader.checkpoints[1].step, reader.checkpoints[1].problem) == (5, "it ends early")


def test_printed_checkpoint_is_not_verified() -> None:
    """A path that the program prints is a checkpoint, whose completeness nothing shows."""
    reader = CheckpointReader()
    reader.add_printed('{"epoch": 3, "checkpoint": "/out/a.pt", "step": 12}', 7.0)
    (checkpoint,) = reader.checkpoints
    assert (checkpoint.state, checkpoint.step, checkpoint.saved_at) == ("unverified", 12, 7.0)


def test_program_names_the_step_of_a_checkpoint_that_was_looked_at() -> None:
    """What the recorder reports of a checkpoint stays, and the program's line adds its step, in either order."""
    reader = CheckpointReader()
    reader.add_record(build_record("/c/a.pt"))
    reader.add_printed('{"checkpoint": "/c/a.pt", "step": 12}', 7.0)
    reader.add_printed('{"checkpoint": "/c/b.pt", "step": 13}', 8.0)
    reader.add_record(build_record("/c/b.pt"))
    assert [(each.state, each.step) for each in reader.checkpoints] == [("complete", 12), ("complete", 13)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        RECORD_PREFIX + "{",
        RECORD_PREFIX + '{"kind":"checkpoint"}',
        RECORD_PREFIX + '{"kind":"checkpoint","path":"","state":"complete","saved_at":1}',
        RECORD_PREFIX + '{"kind":"checkpoint","path":"/c","state":"perfect","saved_at":1}',
        RECORD_PREFIX + '{"kind":"checkpoint","path":"/c","state":"complete","saved_at":NaN}',
        RECORD_PREFIX + '{"kind":"checkpoint","path":"/c\\u001b[2J","state":"complete","saved_at":1}',
        RECORD_PREFIX + '{"kind":"end","rank":0}',
        '{"checkpoint": 5}',
        '{"checkpoint": ""}',
        '[{"checkpoint": "/c"}]',
        "the checkpoint",
        '{"checkpoint": "/c"',
        '{"a":' * 100_000,
    ],
)
def test_other_lines_are_ignored(text: str) -> None:
    """Malformed lines, and lines about something else, are no checkpoints."""
    reader = CheckpointReader()
    reader.add_record(text)
    if "[{" not in text:
        reader.add_printed(text, 1.0)
    assert reader.checkpoints == ()


@pytest.mark.parametrize(
    ("checkpoints", "path"),
    [
        ([], None),
        ([build_checkpoint("/a", saved_at=1), build_checkpoint("/b", saved_at=2)], "/b"),
        ([build_checkpoint("/b", saved_at=2), build_checkpoint("/a", saved_at=1)], "/b"),
        ([build_checkpoint("/a", step=10), build_checkpoint("/b", step=9)], "/a"),
        ([build_checkpoint("/a"), build_checkpoint("/b", "torn", saved_at=2)], "/a"),
        ([build_checkpoint("/a"), build_checkpoint("/b", "gone", saved_at=2)], "/a"),
        ([build_checkpoint("/b", "torn")], None),
        ([build_checkpoint("/a"), build_checkpoint("/b", "unverified", saved_at=2, is_observed=False)], "/a"),
        ([build_checkpoint("/a", "torn"), build_checkpoint("/b", "unverified", saved_at=2, is_observed=False)], None),
        ([build_checkpoint("/b", "unverified", is_observed=False)], "/b"),
    ],
)
def test_attempt_continues_from_the_last_complete_checkpoint(checkpoints: list[Checkpoint], path: str | None) -> None:
    """Never a torn or removed one; one that was only printed counts where nothing was looked at."""
    selected = select_resume_checkpoint(checkpoints)
    assert (selected.path if selected else None) == path
