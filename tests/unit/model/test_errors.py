"""What users read of an error, and that it survives the way between processes."""

import pickle

import pytest

from torchyard.model.errors import (
    ClusterError,
    DetachedError,
    FolderError,
    HostError,
    PreflightError,
    ProfileError,
    RendezvousError,
    RunInUseError,
    TorchyardError,
    TrainingError,
    UnreachedError,
)
from torchyard.model.requirements import (
    failed_check,
    passed_check,
    warning_check,
)
from torchyard.model.result import RunResult

CHECKS = (
    passed_check("program", "train.py"),
    failed_check("port 29400", "taken by nginx", "set options.port"),
    warning_check("processors", "2 for 8 processes"),
    failed_check("clock of gpu1", "90 s behind", ""),
)
ERRORS = [
    ProfileError("mnist", ("mnist.yaml:3: unknown key ndoes",)),
    PreflightError(CHECKS),
    HostError("gpu1", "submit", "no python3"),
    UnreachedError("gpu1", "ssh", "connection refused"),
    ClusterError("https://api", "GET pods", "forbidden", 403),
    RendezvousError("http://etcd:2379/v2/keys", "404", "use etcd 3.5", retry=True),
    FolderError("/runs/a", "no room"),
    DetachedError("the disk is full"),
    RunInUseError("/runs/a", "host:/runs#1"),
    TrainingError(
        RunResult(
            profile="a", run="a-1", end="failed", sentence="it broke", seconds=1, attempts=1, metrics={"loss": 2.0}
        )
    ),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_error_survives_pickling(error: TorchyardError) -> None:
    """Prefect passes an error between processes by pickle: type, fields and message stay the same."""
    unpickled = pickle.loads(pickle.dumps(error))
    assert (type(unpickled), vars(unpickled), str(unpickled)) == (type(error), vars(error), str(error))


@pytest.mark.parametrize(
    ("findings", "text"),
    [(("a: wrong",), "profile mnist: a: wrong"), (("a: wrong", "b: wrong"), "profile mnist:\n  a: wrong\n  b: wrong")],
)
def test_each_of_many_findings_has_a_line(findings: tuple[str, ...], text: str) -> None:
    """A single finding stands behind the profile's name, and each of several on a line of its own."""
    assert str(ProfileError("mnist", findings)) == text


def test_only_failed_checks_are_listed() -> None:
    """A preflight's message counts all checks, and lists those that failed, each with its remedy if there is one."""
    assert str(PreflightError(CHECKS)).splitlines() == [
        "preflight: 2 of 4 checks failed",
        "  port 29400: taken by nginx; set options.port",
        "  clock of gpu1: 90 s behind",
    ]


@pytest.mark.parametrize(
    ("status", "is_transient"),
    [(0, True), (401, True), (429, True), (503, True), (403, False), (404, False), (409, False)],
)
def test_server_that_is_away_may_answer_later(status: int, is_transient: bool) -> None:
    """An unreachable or busy API server and an expired login may pass; a refusal does not."""
    assert ClusterError("https://api", "GET pods", "no", status).is_transient is is_transient
