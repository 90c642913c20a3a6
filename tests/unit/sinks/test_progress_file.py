"""The file with the progress of a run: what it contains after each event."""

from pathlib import Path

import pytest

from tests.builders.hang_examples import HANG
from torchyard.model.event import AttemptStarted, BadLossRead, RowsRead, StatusRead, WaitEnded
from torchyard.model.hang import HangUpdate
from torchyard.model.run import BadLoss, Status
from torchyard.run.folder import RunFolder
from torchyard.sinks.progress_file import ProgressFileSink

WAITING = StatusRead(Status(state="pending", reason="1 of 2 nodes has joined"), 3.0)
RUNNING = StatusRead(Status(state="running", reason="2 of 2 nodes joined"), 3.0)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def test_newest_progress_is_recorded(folder: RunFolder) -> None:
    """The file has the reason while the job waits, then the values and the share of the work that is done."""
    sink = ProgressFileSink(folder, interval_s=0.0)
    sink.take(AttemptStarted(2, "job"))
    assert folder.progress() is None
    sink.take(WAITING)
    waiting = folder.progress()
    assert waiting
    assert (waiting.attempt, waiting.reason, waiting.done) == (2, "1 of 2 nodes has joined", "")
    sink.take(RUNNING)
    sink.take(RowsRead(({"epoch": 1, "epochs": 4, "loss": 0.5},)))
    running = folder.progress()
    assert running
    assert (running.reason, running.values, running.done, running.percent) == (
        "",
        "epoch 1: loss 0.5",
        "epoch 1 of 4",
        25.0,
    )


def test_hang_hides_a_bad_loss_until_it_is_over(folder: RunFolder) -> None:
    """The warning is the hang's; once the hang is over, that of the loss."""
    sink = ProgressFileSink(folder, interval_s=0.0)
    sink.take(AttemptStarted(1, "job"))
    sink.take(BadLossRead(BadLoss(name="loss", row="epoch 3: loss nan", count=1)))
    warnings = []
    for hang in (HANG, None):
        sink.take(HangUpdate(hang=hang))
        progress = folder.progress()
        assert progress
        warnings.append(progress.warning)
    assert warnings[0] == HANG.sentence
    assert warnings[1].startswith("loss is nan")


def test_fast_changes_are_written_together(folder: RunFolder) -> None:
    """Between two writes lie some seconds; what is not written yet follows at the end of the wait."""
    sink = ProgressFileSink(folder, interval_s=3600.0)
    sink.take(AttemptStarted(1, "job"))
    sink.take(WAITING)
    sink.take(RUNNING)
    waiting = folder.progress()
    sink.take(WaitEnded())
    running = folder.progress()
    assert waiting
    assert running
    assert (waiting.reason, running.reason) == ("1 of 2 nodes has joined", "")
