"""Errors: their messages, and that they survive pickling."""

import pickle

import pytest

from torchyard.model.errors import (
    ClusterError,
    DetachedError,
    FolderError,
    HostError,
    NoReportError,
    NoRunError,
    PreflightError,
    ProfileError,
    RendezvousError,
    RunInUseError,
    TorchyardError,
    TrainingError,
    UnreachedError,
)
from torchyard.model.finding import Finding, failed_check, passed_check, warning_check
from torchyard.model.run import RunResult

CHECKS = (
    passed_check("program", "train.py"),
    failed_check("port 29400", "taken by nginx", "set options.port"),
    warning_check("processors", "2 for 8 processes"),
    failed_check("clock of gpu1", "90 s behind", ""),
)
ERRORS = [
    ProfileError("mnist", (Finding("mnist.yaml:3", "unknown key ndoes"),)),
    PreflightError(CHECKS),
    HostError("gpu1", "submit", "no python3"),
    UnreachedError("gpu1", "ssh", "connection refused"),
    ClusterError("https://api", "GET pods", "forbidden", 403),
    RendezvousError("http://etcd:2379/v2/keys", "404", "use etcd 3.5", retry=True),
    FolderError("/runs/a", "no room"),
    NoReportError("a-1", "it was removed"),
    NoRunError("a-1", ("/runs",), ("a-2",)),
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
    """An error that Prefect passes between processes by pickle keeps its type, fields and message."""
    unpickled = pickle.loads(pickle.dumps(error))
    assert (type(unpickled), vars(unpickled), str(unpickled)) == (type(error), vars(error), str(error))


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_error_with_named_fields_survives_pickling(error: TorchyardError) -> None:
    """An error survives pickling even if all its fields were passed by their names."""
    named_error = type(error)(**vars(error))
    unpickled = pickle.loads(pickle.dumps(named_error))
    assert (type(unpickled), vars(unpickled), str(unpickled)) == (type(error), vars(error), str(error))


@pytest.mark.parametrize(
    ("keys", "text"), [("a", "profile mnist: a: wrong"), ("ab", "profile mnist:\n  a: wrong\n  b: wrong")]
)
def test_each_of_many_findings_has_a_line(keys: str, text: str) -> None:
    """A single finding follows the profile's name, and each of several has a separate line."""
    assert str(ProfileError("mnist", tuple(Finding(key, "wrong") for key in keys))) == text


def test_only_failed_checks_are_listed() -> None:
    """A preflight's message counts all checks, and lists those that failed, each with its remedy if there is one."""
    assert str(PreflightError(CHECKS)).splitlines() == [
        "preflight: 2 of 4 checks failed",
        "  port 29400: taken by nginx; set options.port",
        "  clock of gpu1: 90 s behind",
    ]


@pytest.mark.parametrize(
    ("status", "is_transient"),
    [(status, True) for status in (0, 401, 429, 500, 502, 503, 504)]
    + [(status, False) for status in (400, 403, 404, 409, 422, 501, 505)],
)
def test_unreachable_server_is_worth_a_retry(status: int, is_transient: bool) -> None:
    """An unreachable, busy or broken API server and an expired login are worth a retry, and a refusal is not."""
    assert ClusterError("https://api", "GET pods", "no", status).is_transient is is_transient


def test_missing_report_names_its_run() -> None:
    """The message names the run without a report and the reason."""
    assert str(NoReportError("a-1", "it was removed")) == "the run a-1 has no report: it was removed"
