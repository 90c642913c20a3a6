"""Runs of MLflow in a database file, read by MLflow's own client."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.builders.experiments import RUN_ID, build_experiment, build_experiment_end, build_points
from torchyard.model.observe import Mlflow
from torchyard.trackers.mlflow import MlflowRun

pytest.importorskip("mlflow", reason="there is no mlflow")


def opened(tmp_path: Path, **options: str) -> MlflowRun:
    run = MlflowRun(Mlflow(uri=f"sqlite:///{tmp_path}/mlflow.db", **options))
    run.open(build_experiment(tmp_path))
    return run


def read_runs(tmp_path: Path, experiment_name: str = "mine") -> tuple[Any, list[Any]]:
    """MLflow's client, and the runs of an experiment."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name(experiment_name)
    assert experiment
    return client, list(client.search_runs([experiment.experiment_id]))


def test_resumed_run_is_the_same_run(tmp_path: Path) -> None:
    """A second process finds the run by its id, continues its curve, and ends it."""
    opened(tmp_path).write(build_points(1, 2))
    client, (first,) = read_runs(tmp_path)
    assert (first.info.status, first.data.params["args"]) == ("RUNNING", "--epochs 3")
    reopened = opened(tmp_path)
    reopened.write(build_points(3))
    reopened.close(build_experiment_end(numbers={"summary.best": 0.3}))
    client, (run,) = read_runs(tmp_path)
    assert run.info.run_id == first.info.run_id
    assert (run.info.run_name, run.info.status, run.info.end_time) == ("mine-a1b2c3d4", "FINISHED", 1_700_000_100_000)
    assert (run.data.tags["torchyard.run_id"], run.data.tags["torchyard.end"]) == (RUN_ID, "succeeded")
    curve = [(point.step, point.value, point.timestamp) for point in client.get_metric_history(run.info.run_id, "loss")]
    assert curve == [(1, 0.1, 1_700_000_001_000), (2, 0.2, 1_700_000_002_000), (3, 0.3, 1_700_000_003_000)]
    assert run.data.metrics["summary.best"] == 0.3


@pytest.mark.parametrize(("end", "status"), [("failed", "FAILED"), ("gave-up", "FAILED"), ("cancelled", "KILLED")])
def test_end_is_reported_as_a_status_of_mlflow(tmp_path: Path, end: str, status: str) -> None:
    """A failed run is FAILED, and a run that a person has ended is KILLED."""
    opened(tmp_path).close(build_experiment_end(end))
    _, (run,) = read_runs(tmp_path)
    assert run.info.status == status


@pytest.mark.parametrize(
    ("name", "recorded"),
    [("mAP@0.5:0.95", "mAP_0.5_0.95"), ("/train//loss", "train/loss"), ("../loss", "loss"), ("a/.", "a"), (".", "_")],
)
def test_name_that_mlflow_refuses_is_replaced(tmp_path: Path, name: str, recorded: str) -> None:
    """Characters of a metric's name that MLflow does not allow are replaced, and parts that mean another folder."""
    opened(tmp_path, experiment="other").write(build_points(1, name=name))
    _, (run,) = read_runs(tmp_path, "other")
    assert run.data.metrics == {recorded: 0.1}


def test_parameters_that_get_one_name_do_not_prevent_the_run(tmp_path: Path) -> None:
    """Of two parameters whose names MLflow cannot tell apart one is recorded: it refuses both together."""
    experiment = build_experiment(tmp_path)._replace(parameters={"env.A:B": "1", "env.A@B": "2"})
    MlflowRun(Mlflow(uri=f"sqlite:///{tmp_path}/mlflow.db")).open(experiment)
    _, (run,) = read_runs(tmp_path)
    assert run.data.params == {"env.A_B": "2"}


def test_server_is_taken_from_the_environment(tmp_path: Path) -> None:
    """A profile without an address uses the tracking server of the launcher's environment."""
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{tmp_path}/mlflow.db"
    MlflowRun(Mlflow()).open(build_experiment(tmp_path))
    assert len(read_runs(tmp_path)[1]) == 1
