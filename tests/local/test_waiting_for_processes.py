"""Waiting for a job of local processes whose log arrives late, or whose progress cannot be reported."""

from pathlib import Path

import pytest

from tests.conftest import Write
from tests.doubles.scripted_jobs import Make, scripted_job, wait_briefly
from torchyard.model.errors import FolderError
from torchyard.model.run import Row


@pytest.fixture
def job(write: Write, tmp_path: Path) -> Make:
    """Plan a job of one node that runs for some tenths of a second; its log is local, or copied by a script."""
    return scripted_job(write, tmp_path)


def test_job_with_a_late_log_is_not_late_for_its_start(job: Make) -> None:
    """Over a slow connection neither `start` nor `silence` expires before the log has arrived."""
    plan = job(tenths=25, log_after=20, log_size=66)
    assert wait_briefly(plan, age_s=5000).status.state == "succeeded"


@pytest.mark.parametrize("error", [FolderError("x", "gone"), OSError(28, "No space left on device"), ValueError("x")])
def test_callback_that_fails_does_not_end_the_wait(job: Make, error: Exception) -> None:
    """If the callback of the wait raises an error, the wait continues to the end of the job."""

    def on_poll(_: tuple[Row, ...]) -> None:
        raise error

    assert wait_briefly(job(tenths=3), on_poll=on_poll).status.state == "succeeded"
