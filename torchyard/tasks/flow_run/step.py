"""Shared by all steps: the decorator that turns a step into a Prefect task, and the log that it writes to.

Importing this module installs the run's log as the engine's log source and filters Prefect's own loggers.
"""

import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.exceptions import CancelledRun, CrashedRun, FailedRun, MissingContextError
from prefect.logging import get_run_logger

from torchyard.common.log import LOGGER_NAME, RunLogger, SafeText, set_log_source

P = ParamSpec("P")
R = TypeVar("R")


def make_task(function: Callable[P, R]) -> Task[P, R]:
    """Wrap a step as a task without cache and stored result: state is stored where the job runs, so every step can be
    run again.
    """
    decorate: Callable[[Callable[P, R]], Task[P, R]] = task(
        task_run_name=function.__name__, cache_policy=NO_CACHE, persist_result=False
    )
    return decorate(function)


def get_run_log() -> RunLogger:
    """The run's log; the engine's own logger if a step is called outside of a run."""
    try:
        return get_run_logger()
    except MissingContextError:
        return logging.getLogger(LOGGER_NAME)


_ROUTINE_MESSAGES = ("Beginning flow run", "Finished in state Completed()", "View at ")  # of every run and every step


class EngineLogFilter(SafeText):
    """Filter the log of Prefect's engine.

    Our own errors are logged without a stack trace (by SafeText). Two things are dropped: the error that Prefect raises
    only to log a flow's end, and the messages that every run has.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, CancelledRun | CrashedRun | FailedRun):
            return False  # the flow returned its own end, and Prefect raises it only to log it
        if record.levelno == logging.INFO and record.getMessage().startswith(_ROUTINE_MESSAGES):
            return False
        return super().filter(record)


set_log_source(get_run_log)
logging.getLogger("prefect.flow_runs").setLevel(logging.NOTSET)  # prefect.yaml silences it until the flow is loaded
for logger_name in ("prefect.task_runs", "prefect.flow_runs", "prefect.engine", LOGGER_NAME):
    logging.getLogger(logger_name).addFilter(EngineLogFilter())
