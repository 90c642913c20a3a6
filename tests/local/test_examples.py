"""The unchanged examples of docs/reuse.md, on this machine."""

import json
from pathlib import Path

import pytest

from examples.in_parallel import in_parallel
from examples.one_after_the_other import one_after_the_other
from examples.own_step import own_step
from examples.register import train_and_register
from examples.two_steps import can_it_run
from torchyard.host.processes import find_labelled
from torchyard.run.folder import RunFolder, list_run_folders, runs_folder

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("api")]


def count_runs() -> int:
    """Check that each run has a report without leftovers; return the number of runs."""
    reports = [folder.report() for folder in list_run_folders()]
    assert [report.leftovers if report else None for report in reports] == [()] * len(reports)
    return len(reports)


def test_one_training_follows_another() -> None:
    """The second training continues from the checkpoint of the first one, and each is a separate run."""
    result = one_after_the_other(epochs=2)
    assert (result.end, result.metrics["epoch"], count_runs()) == ("succeeded", 2, 2)
    report = RunFolder(runs_folder() / result.run).report()
    assert report
    assert report.collected
    assert [row["epoch"] for row in report.collected.metrics.rows] == [2]
    assert result.resume
    assert result.resume in result.checkpoints


def test_trainings_run_at_the_same_time() -> None:
    """Each seed is a separate run, and all of them run before one has ended."""
    results = in_parallel(epochs=1)
    assert [result.end for result in results] == ["succeeded"] * 3
    assert len({result.run for result in results}) == count_runs() == 3
    spans = [
        (folder.read_record().last_start["at"], folder.read_record().find_last("end")["at"])
        for folder in list_run_folders()
    ]
    assert max(start for start, _ in spans) < min(end for _, end in spans)


def test_optuna_searches_for_the_learning_rate() -> None:
    """Each trial is a run with a report."""
    pytest.importorskip("optuna")
    from examples.learning_rates import learning_rates

    assert 1e-4 < learning_rates(trials=2, epochs=1)["lr"] < 1e-1
    assert count_runs() == 2


def test_steps_are_used_alone_on_machines() -> None:
    """A flow calls the steps from preflight to teardown with its own step in between, and no process remains."""
    assert own_step(epochs=2) > 0.5
    (folder,) = runs_folder().glob("digits-local-*")
    assert find_labelled(f"{folder.name}/") == []


def test_two_steps_are_used_alone() -> None:
    """A flow that only plans and checks returns a result and starts no run."""
    assert can_it_run()
    assert count_runs() == 0


def test_model_is_registered_if_it_is_good_enough(tmp_path: Path) -> None:
    """The checkpoint that the result names is registered under the name of its run."""
    model = train_and_register(epochs=1, enough=0.1, models=tmp_path / "models")
    assert model
    assert sum(path.stat().st_size for path in model.iterdir()) > 1000
    (folder,) = list_run_folders()
    assert model.name == json.loads((folder.path / "report.json").read_text())["run"]
