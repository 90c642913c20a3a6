"""The result of a run: built from the report."""

import os
from pathlib import Path

from tests.builders.reports import short_report
from tests.unit.diagnosis.test_checkpoints import build_checkpoint
from torchyard.loading.profile import load_profile
from torchyard.model.run import Collected, Metrics, Report
from torchyard.run.folder import RunFolder
from torchyard.run.next_attempt import find_resume_point
from torchyard.run.result import build_result


def build_report(folder: Path, metrics: Metrics) -> Report:
    """A report of a run in this folder, whose last attempt has these metrics."""
    report = short_report()
    collected = Collected(logs=(), metrics=metrics, failure=None)
    last = report.attempts[-1].model_copy(update={"collected": collected})
    return report.model_copy(update={"folder": str(folder), "attempts": (*report.attempts[:-1], last)})


def test_metrics_are_the_last_row_and_the_summary(tmp_path: Path) -> None:
    """Of the rows only the last one counts, together with the program's summary of the whole run, which wins."""
    metrics = Metrics(rows=({"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": 1.0}), summary={"best": 1.0})
    result = build_result(build_report(tmp_path, metrics))
    assert result.metrics == {"epoch": 2, "loss": 1.0, "best": 1.0}

    metrics = Metrics(rows=({"epoch": 1, "loss": 2.0},), summary={"loss": 3.0})
    assert build_result(build_report(tmp_path, metrics)).metrics == {"epoch": 1, "loss": 3.0}
    assert result.report == f"{tmp_path}/report.json"


def test_result_stays_small(tmp_path: Path) -> None:
    """A program may print any number of values, of any length: a result holds a hundred short ones."""
    metrics = Metrics(summary={f"value {number}": "x" * 100_000 for number in range(1000)})
    result = build_result(build_report(tmp_path, metrics))
    assert len(result.metrics) == 100
    assert len(result.model_dump_json()) < 200_000


def test_checkpoints_are_those_named_and_those_saved(tmp_path: Path) -> None:
    """Those that the logs show come first, then the files of the run's folder; each once, and no torn one."""
    (tmp_path / "checkpoints").mkdir()
    for mtime, name in enumerate(("b.pt", "a.pt", "c.tmp", "torn.pt")):
        (tmp_path / "checkpoints" / name).touch()
        os.utime(tmp_path / "checkpoints" / name, (mtime, mtime))
    checkpoints = (
        build_checkpoint("s3://models/1", "unverified", is_observed=False),
        build_checkpoint("s3://models/2", "unverified", is_observed=False),
        build_checkpoint("/removed.pt", "gone"),
        build_checkpoint(f"{tmp_path}/checkpoints/torn.pt", "torn"),
        build_checkpoint(f"{tmp_path}/checkpoints/a.pt"),
    )
    report = build_report(tmp_path, Metrics())
    (ended,) = report.attempts
    collected = ended.collected.model_copy(update={"checkpoints": checkpoints})
    report = report.model_copy(update={"attempts": (ended.model_copy(update={"collected": collected}),)})
    saved_paths = [f"{tmp_path}/checkpoints/{name}" for name in ("a.pt", "b.pt")]
    assert build_result(report).checkpoints == ("s3://models/1", "s3://models/2", *saved_paths)


def test_checkpoints_of_a_host_behind_ssh_are_found(tmp_path: Path) -> None:
    """Checkpoints that were copied back from a host are listed too."""
    saved = tmp_path / "attempt-1" / "node-0" / "files" / "checkpoints"
    saved.mkdir(parents=True)
    (saved / "a.pt").touch()
    assert build_result(build_report(tmp_path, Metrics())).checkpoints == (str(saved / "a.pt"),)


def test_resume_is_the_checkpoint_that_another_run_gets(tmp_path: Path) -> None:
    """It is the last complete one of all attempts, also if the last attempt has saved none; None without one."""
    assert build_result(build_report(tmp_path, Metrics())).resume is None
    folder = RunFolder(tmp_path)
    folder.save_checkpoints(1, (build_checkpoint("/step-1"), build_checkpoint("/step-2", "torn")))
    result = build_result(build_report(tmp_path, Metrics()))
    next_point = find_resume_point(folder, load_profile("digits-local"))
    assert next_point
    assert (result.resume, next_point.path) == ("/step-1", "/step-1")
