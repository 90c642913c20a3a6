"""The trackers that a profile names, and their requirements where the launcher runs."""

import sys

import pytest

from torchyard.model.observe import Mlflow, TensorBoard, Trackers, Wandb
from torchyard.trackers.mlflow import MlflowRun
from torchyard.trackers.registry import check_trackers, create_trackers
from torchyard.trackers.tensorboard import TensorBoardRun
from torchyard.trackers.wandb import WandbRun

ALL_TRACKERS = Trackers(tensorboard=TensorBoard(), mlflow=Mlflow(uri="http://x"), wandb=Wandb())


def test_each_name_is_a_tracker() -> None:
    """A profile gets the trackers that it names, and no other."""
    assert [type(tracker) for tracker in create_trackers(ALL_TRACKERS).values()] == [
        TensorBoardRun,
        MlflowRun,
        WandbRun,
    ]
    assert create_trackers(Trackers()) == {}
    assert [check.verdict for check in check_trackers(ALL_TRACKERS)] == ["ok"] * 3


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_missing_package_is_one_clear_finding(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Preflight names the missing package, and the extra that installs it."""
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    monkeypatch.delitem(sys.modules, name, raising=False)
    options = {"uri": "http://x"} if name == "mlflow" else {}
    (check,) = check_trackers(Trackers.model_validate({name: options}))
    assert (check.verdict, check.what) == ("failed", f"the package {name} is not installed")
    assert check.remedy.startswith(f"pip install 'torchyard[{name}]' where the launcher runs")


def test_mlflow_needs_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a tracking server in the profile or the environment, MLflow would write into the current folder."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    _, check = check_trackers(Trackers(mlflow=Mlflow()))
    assert (check.verdict, check.what) == ("failed", "no tracking server is named")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://x")
    assert [check.verdict for check in check_trackers(Trackers(mlflow=Mlflow()))] == ["ok"]
