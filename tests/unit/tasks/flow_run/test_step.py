"""Shared by all tasks of a run: Prefect neither caches nor stores their results, and their log is the run's."""

import logging
from typing import Any

import pytest
from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.exceptions import CancelledRun, CrashedRun, FailedRun

from torchyard.tasks.flow_run.step import EngineLogFilter, get_run_log
from torchyard.tasks.steps import STEP_TASKS


@pytest.mark.parametrize("task", STEP_TASKS, ids=lambda task: task.name)
def test_result_of_a_step_is_never_taken_from_a_store(task: Task[..., Any]) -> None:
    """A step runs whenever it is called: a stored result would describe a job that may have ended since."""
    assert (task.cache_policy, task.persist_result, task.retries) == (NO_CACHE, False, 0)


@pytest.mark.parametrize(
    ("error", "is_logged"),
    [(FailedRun("x"), False), (CancelledRun("x"), False), (CrashedRun("x"), False), (OSError(), True)],
)
def test_end_of_a_flow_is_not_logged_again(error: Exception, is_logged: bool) -> None:
    """Prefect's engine raises a flow's end only to log it, so that error is dropped; other errors are logged."""
    record = logging.LogRecord("prefect.engine", logging.ERROR, "", 0, "ended", (), (type(error), error, None))
    assert EngineLogFilter().filter(record) is is_logged


def test_step_outside_of_a_run_has_a_log() -> None:
    """A step that is called without a run writes to the engine's own logger."""
    assert get_run_log().name == "torchyard"
