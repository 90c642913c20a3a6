"""The judgement of `make stop`: a report that claims too much, or too little, is a problem."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.builders.reports import attempt, report_of
from tests.chaos.world import find_processes
from tests.stop.__main__ import StopMatrix
from tests.stop.cells import WAYS, Cell, Save, list_cells
from tests.stop.trial import StopTrial, Truth, list_problems, read_truth
from tests.support.waiting import wait_until
from tests.unit.diagnosis.test_checkpoints import build_checkpoint
from torchyard.diagnosis.saved_work import describe_saved_work
from torchyard.model.checkpoint import Checkpoint, StopRequest
from torchyard.model.run import Report

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
def test_report_is_compared_with_what_the_program_did(save: Save, checkpoints: list[Checkpoint], problem: str) -> None:
    """A save that was not complete must not be claimed, and one that was must not be missed."""
    truth = Truth(starts=[0], saved_steps=[], last_step=80)
    problems = list_problems(Cell("local", "interrupt", save), build_report(checkpoints), checkpoints, truth)
    assert bool(problems) is bool(problem)
    assert problem in "; ".join(problems)


@pytest.mark.parametrize(
    ("save", "starts", "checkpoints", "problem"),
    [
        ("quick", [0, 80], [FIRST, LAST], ""),
        ("quick", [0, 40], [FIRST, LAST], "continued from step 40, and step 80 was the last"),
        ("quick", [0], [FIRST, LAST], "started at the steps [0]"),
        ("torn", [0, 40], [FIRST, TORN], ""),
        ("torn", [0, 80], [FIRST, TORN], "continued from step 80, which was not saved"),
        ("torn", [0, 0], [FIRST, TORN], "continued from step 0"),
    ],
)
def test_next_attempt_must_continue_from_the_last_complete_checkpoint(
    save: Save, starts: list[int], checkpoints: list[Checkpoint], problem: str
) -> None:
    """A run that starts again after an eviction trains on from what was saved, and from nothing that was torn."""
    stopped = build_report(checkpoints)
    second = attempt(2, "")
    report = stopped.model_copy(update={"end": "succeeded", "attempts": (*stopped.attempts, second)})
    saved_steps = [40] if save == "torn" else [40, 80]
    problems = list_problems(
        Cell("volcano", "evict", save), report, checkpoints, Truth(starts, saved_steps, last_step=80)
    )
    assert bool(problems) is bool(problem)
    assert problem in "; ".join(problems)


def test_truth_is_read_while_it_is_written(tmp_path: Path) -> None:
    """The last line may lack its number; the last step is that of the first attempt."""
    path = tmp_path / "truth"
    path.write_text("host pod-0\nstart 0\nstep 41\nsaved 40\nhost pod-1\nstart 40\nstep 42\nstep ")
    assert read_truth(path) == Truth(starts=[0, 40], saved_steps=[40], last_step=41, host="pod-1")


def test_leftovers_and_another_end_are_problems() -> None:
    """A stop also leaves nothing behind, and is reported as one."""
    report = build_report([FIRST, LAST], end="succeeded", leftovers=("process 5",))
    truth = Truth(starts=[0], saved_steps=[40, 80], last_step=80)
    problems = list_problems(Cell("local", "interrupt", "quick"), report, [FIRST, LAST], truth)
    assert problems == ["left: process 5", "the end is succeeded"]


def test_matrix_has_every_place_and_way() -> None:
    """At least sixty cells; the ways of a cluster are played in pods only."""
    cells = list_cells()
    assert len(cells) == len(set(cells)) >= 60
    assert {cell.location for cell in cells if cell.way == "preempt"} == {"volcano", "pytorchjob"}
    assert {cell.way for cell in cells} == set(WAYS)


def test_closed_trial_has_no_processes(tmp_path: Path) -> None:
    """Every process of the cell's run is killed, whoever started it, and no other one is launched."""
    trial = StopTrial(Cell("local", "interrupt", "slow"), tmp_path, {}, {})
    argv = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(argv, env=os.environ | trial.env, start_new_session=True) as process:
        wait_until(lambda: process.pid in find_processes(f"TORCHYARD_RUNS={trial.runs}"))
        trial.close()
        assert process.wait() == -signal.SIGKILL
    with pytest.raises(RuntimeError, match="the matrix is being stopped"):
        trial.play()


def test_interrupted_matrix_leaves_no_processes(tmp_path: Path) -> None:
    """At its exit, as after SIGTERM, the matrix ends the cell that a thread plays, and reports nothing about it."""
    cell = Cell("local", "interrupt", "slow")
    variable = f"TORCHYARD_RUNS={tmp_path}/"
    matrix = StopMatrix(tmp_path, [cell])
    with matrix:
        lane = Thread(target=matrix.play, args=([(cell,)], 1), daemon=True)
        lane.start()
        wait_until(lambda: find_processes(variable))
    assert find_processes(variable) == []
    lane.join()
    assert matrix.results == []
