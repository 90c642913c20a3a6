"""The trackers that a profile names, and their requirements where the launcher runs."""

import sys

import pytest

from tests.doubles.installed_packages import InstalledPackages
from torchyard.model.errors import ExtensionError
from torchyard.model.observe import Mlflow, TensorBoard, Trackers, Wandb
from torchyard.trackers.mlflow import MlflowRun
from torchyard.trackers.registry import check_trackers, create_trackers
from torchyard.trackers.tensorboard import TensorBoardRun
from torchyard.trackers.tracker import Experiment, ExperimentEnd
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
    """Preflight names the missing package, and the command that installs it."""
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    options = {"uri": "http://x"} if name == "mlflow" else {}
    (check,) = check_trackers(Trackers.model_validate({name: options}))
    assert check.verdict == "failed"
    package = "mlflow-skinny" if name == "mlflow" else name
    assert check.what == f"metrics_to needs {package}, which is not installed in {sys.executable}"
    assert check.remedy == f"{sys.executable} -m pip install {package}, or remove it from metrics_to"


def test_mlflow_needs_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a tracking server in the profile or the environment, MLflow would write into the current folder."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    _, check = check_trackers(Trackers(mlflow=Mlflow()))
    assert (check.verdict, check.what) == ("failed", "no tracking server is named")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://x")
    assert [check.verdict for check in check_trackers(Trackers(mlflow=Mlflow()))] == ["ok"]


TRACKER = """
class Board:
    def __init__(self, options):
        self.calls = [options["board"]]

    def open(self, experiment):
        self.calls.append(experiment)

    def write(self, points):
        self.calls.append(points)

    def close(self, end):
        self.calls.append(end)


BOARDS = []


def create_tracker(options):
    BOARDS.append(Board(options))
    return BOARDS[-1]
"""
BOARD = "[torchyard.trackers]\nboard = ty_board:create_tracker\n"
EXPERIMENT = Experiment("r", "id", "p", "/runs/r", {}, {})


def test_tracker_of_another_package_gets_every_call(packages: InstalledPackages) -> None:
    """A tracker of another package is made from its options in the profile, and gets the calls of the run."""
    packages.install("ty-board", BOARD, ty_board=TRACKER)
    settings = Trackers(package_trackers={"board": {"board": "blue"}})
    assert [str(check) for check in check_trackers(settings)] == ["metrics_to board: ty-board 1.0 is installed"]
    (tracker,) = create_trackers(settings).values()
    tracker.open(EXPERIMENT)
    tracker.write([])
    end = ExperimentEnd("succeeded", 1.0, {}, {})
    tracker.close(end)
    import ty_board  # type: ignore[import-not-found]

    assert ty_board.BOARDS[-1].calls == ["blue", EXPERIMENT, [], end]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (TRACKER, "ty-board 1.0 does not accept its options: KeyError: 'board'; change metrics_to: [{board: {…}}]"),
        ("import ty_no", "cannot be imported: ModuleNotFoundError: No module named 'ty_no'; repair or uninstall"),
    ],
)
def test_unusable_tracker_fails_preflight(packages: InstalledPackages, code: str, message: str) -> None:
    """Options that the tracker refuses, and a package that cannot be imported, are findings of preflight."""
    packages.install("ty-board", BOARD, ty_board=code)
    (check,) = check_trackers(Trackers(package_trackers={"board": {}}))
    assert check.verdict == "failed"
    assert message in str(check)


def test_tracker_that_cannot_be_made_raises_when_it_is_opened() -> None:
    """A tracker whose package is gone raises in the worker, which tries again, and not in the run."""
    (tracker,) = create_trackers(Trackers(package_trackers={"board": {}})).values()
    with pytest.raises(ExtensionError, match="unknown tracker board; use tensorboard, mlflow, wandb"):
        tracker.open(EXPERIMENT)
    with pytest.raises(RuntimeError, match="is not open"):
        tracker.write([])
