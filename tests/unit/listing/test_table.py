"""The list of runs as text: its columns, and how they fit a terminal."""

import re

import pytest

from tests.builders.listed_runs import build_row
from torchyard.listing.table import format_short_duration, format_table
from torchyard.model.run import JobProgress

PROGRESS = JobProgress(attempt=1, updated_at=1000.0, done="epoch 3 of 10", values="epoch 3: loss 1", remaining_s=130.0)


def test_run_is_one_line() -> None:
    """A run has its size, its progress, the time that is left since the estimate, its age, its user and its place."""
    header, line = format_table([build_row(progress=PROGRESS, note="rank 1 hangs")], 1010.0, width=None)
    assert header.split() == ["RUN", "STATE", "NODES", "PROGRESS", "LEFT", "AGE", "USER", "WHERE"]
    cells = [
        "mine-a1b2c3d4",
        "running",
        "2 x 8",
        "epoch 3 of 10; rank 1 hangs",
        "2m",
        "15m",
        "alice",
        "volcano lab/team-a",
    ]
    assert re.split("  +", line) == cells


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"state": "waiting", "note": "no node has 8 GPUs", "progress": PROGRESS}, "no node has 8 GPUs"),
        ({"state": "failed", "note": "it\x1b[2J broke\nthere", "ended_at": 161.0}, "1 min 01 s: it broke there"),
        ({"progress": PROGRESS.model_copy(update={"done": ""})}, "epoch 3: loss 1"),
        ({"state": "unreadable", "note": "torn"}, "torn"),
    ],
)
def test_progress_fits_the_state(fields: dict[str, object], text: str) -> None:
    """A waiting run has its reason, an ended one its duration and sentence; nothing can change the terminal."""
    _, line = format_table([build_row(**fields)], 1010.0, width=None)
    assert f"  {text}  " in line


def test_estimate_that_has_passed_is_not_shown() -> None:
    """A job that is slower than estimated has no time left that would be wrong; the column is left out."""
    header, _ = format_table([build_row(progress=PROGRESS)], 1200.0, width=None)
    assert "LEFT" not in header


@pytest.mark.parametrize("width", [80, 120, 160])
def test_lines_fit_the_terminal(width: int) -> None:
    """A line is cut to the terminal; first the progress, then the place, and never the name and the state."""
    runs = [build_row(note="x" * 200, progress=PROGRESS, location="a-long-context/a-long-namespace")]
    header, line = format_table(runs, 1010.0, width=width)
    assert max(len(header), len(line)) <= width
    assert line.startswith("mine-a1b2c3d4  running  2 x 8  epoch 3 of 10")
    assert "..." in line


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0s"), (59.9, "59s"), (3599, "59m"), (7500, "2h05m"), (90000, "1d01h")]
)
def test_short_duration_has_two_units_at_most(seconds: float, text: str) -> None:
    """A duration in a column has at most two units."""
    assert format_short_duration(seconds) == text
