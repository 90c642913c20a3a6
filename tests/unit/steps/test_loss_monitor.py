"""LossMonitor: what it reports of a loss that is nan, and when it ends the job."""

import logging
from pathlib import Path

import pytest

from tests.conftest import plan_of
from torchyard.loading.profile import load_profile
from torchyard.model.causes.launcher import LauncherCause
from torchyard.model.event import BadLossRead
from torchyard.model.profile import OnNan
from torchyard.model.run import BadLoss, Outcome, Row, Status
from torchyard.steps.loss_monitor import LossMonitor

GOOD: Row = {"epoch": 1, "loss": 0.5}
BAD: Row = {"epoch": 2, "loss": None}
SENTENCE = "loss is nan or infinite in the row `epoch 2: loss nan`"
SUCCEEDED = Outcome(status=Status(state="succeeded", reason="1 of 1 agents ended with 0"), exit_codes={})
FAILED = SUCCEEDED.model_copy(update={"status": Status(state="failed", reason="it failed")})


def create_monitor(folder: Path, on_nan: OnNan, events: list[BadLossRead] | None = None) -> LossMonitor:
    plan = plan_of(load_profile("digits-local"), folder)
    received = [] if events is None else events
    return LossMonitor(plan.model_copy(update={"on_nan": on_nan}), received.append)


def test_first_bad_loss_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first loss that is nan is one warning and one event; later ones are counted."""
    events: list[BadLossRead] = []
    monitor = create_monitor(tmp_path, "report", events)
    with caplog.at_level(logging.WARNING):
        for rows in ([GOOD], [BAD, BAD], [BAD]):
            monitor.add_rows(rows)
    assert [record.getMessage() for record in caplog.records] == [SENTENCE]
    assert events == [BadLossRead(BadLoss(name="loss", row="epoch 2: loss nan", count=1))]
    assert monitor.check() is None
    outcome = monitor.complete(SUCCEEDED)
    assert (outcome.status, outcome.bad_loss and outcome.bad_loss.count) == (SUCCEEDED.status, 3)


def test_finite_losses_are_not_reported(tmp_path: Path) -> None:
    """Without such a loss the outcome has none."""
    monitor = create_monitor(tmp_path, "fail")
    monitor.add_rows([GOOD, {"epoch": 2, "grad_norm": None}])
    assert (monitor.check(), monitor.complete(SUCCEEDED)) == (None, SUCCEEDED)


def test_bad_loss_fails_the_run(tmp_path: Path) -> None:
    """With `on_nan: fail` the job ends with the cause `loss-nan`, which no other attempt would repair."""
    monitor = create_monitor(tmp_path, "fail")
    assert monitor.check() is None
    monitor.add_rows([BAD])
    status = monitor.check()
    assert status
    assert status.failure
    assert (status.state, status.failure.cause, status.failure.retry) == ("failed", LauncherCause.LOSS_NAN, False)
    assert status.reason == f"{SENTENCE} (on_nan: fail)"
    assert monitor.complete(SUCCEEDED).status == status


def test_job_that_failed_keeps_its_own_failure(tmp_path: Path) -> None:
    """A job that failed for another reason keeps it, with the loss beside it."""
    monitor = create_monitor(tmp_path, "fail")
    monitor.add_rows([BAD])
    outcome = monitor.complete(FAILED)
    assert (outcome.status, outcome.bad_loss) == (FAILED.status, monitor.bad_loss)
