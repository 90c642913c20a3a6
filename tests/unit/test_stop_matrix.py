"""The judgement of `make stop`: a report that claims too much, or too little, is a problem."""

from pathlib import Path
from typing import Any

import pytest

from tests.builders.reports import attempt, report_of
from tests.stop.cells import Cell, Save, list_cells
from tests.stop.trial import list_problems
from tests.unit.diagnosis.test_checkpoints import build_checkpoint
from torchyard.diagnosis.saved_work import describe_saved_work
from torchyard.model.checkpoint import Checkpoint, StopRequest
from torchyard.model.run import Report
from torchyard.run.folder import RunFolder

STOP = StopRequest(author="Ctrl-C", asked_at=100.0, grace_s=12.0)
FIRST = build_checkpoint("/c/step-40.pt", saved_at=90.0, step=40)
LAST = build_checkpoint("/c/step-80.pt", saved_at=101.0, step=80)
TORN = build_checkpoint("/c/step-80.pt", "torn", saved_at=101.0, step=80)


def build_report(checkpoints: list[Checkpoint], **changes: Any) -> Report:
    """The report of a stopped run with these checkpoints, as torchyard writes it."""
    saved_work = describe_saved_work(checkpoints, STOP, None)
    ended = attempt(1, "node-lost")
    collected = ended.collected.model_copy(update={"checkpoints": tuple(checkpoints), "saved_work": saved_work})
    sentence = f"stopped by Ctrl-C; {saved_work.sentence}" if saved_work else "stopped by Ctrl-C"
    report = report_of(ended.model_copy(update={"collected": collected}))
    return report.model_copy(update={"end": "stopped", "sentence": sentence} | changes)


@pytest.mark.parametrize(
    ("save", "checkpoints", "problem"),
    [
        ("quick", [FIRST, LAST], ""),
        ("quick", [FIRST], "the work is not reported as saved"),
        ("torn", [FIRST, TORN], ""),
        ("torn", [FIRST, LAST], "the work is reported as saved"),
        ("overwrite", [TORN], ""),
        ("overwrite", [FIRST], "the run continues from /c/step-40.pt"),
        ("none", [], ""),
        ("none", [FIRST], "the sentence is wrong"),
    ],
)
def test_report_is_compared_with_what_the_program_did(
    tmp_path: Path, save: Save, checkpoints: list[Checkpoint], problem: str
) -> None:
    """A save that was not complete must not be claimed, and one that was must not be missed."""
    folder = RunFolder(tmp_path)
    folder.save_checkpoints(1, checkpoints)
    problems = list_problems(Cell("local", "interrupt", save), build_report(checkpoints), folder, last_step=80)
    assert bool(problems) is bool(problem)
    assert problem in "; ".join(problems)


def test_leftovers_and_another_end_are_problems(tmp_path: Path) -> None:
    """A stop also leaves nothing behind, and is reported as one."""
    report = build_report([FIRST, LAST], end="succeeded", leftovers=("process 5",))
    RunFolder(tmp_path).save_checkpoints(1, [FIRST, LAST])
    problems = list_problems(Cell("local", "interrupt", "quick"), report, RunFolder(tmp_path), last_step=80)
    assert problems == ["left: process 5", "the end is succeeded"]


def test_matrix_has_at_least_sixty_cells() -> None:
    """Each way to stop meets each way to save, on this machine and behind ssh."""
    assert len(list_cells()) == len(set(list_cells())) >= 60
