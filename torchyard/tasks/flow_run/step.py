"""What every step has in common: the decorator that makes it a Prefect task, and the log that it writes to."""

import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.exceptions import CancelledRun, CrashedRun, FailedRun, MissingContextError
from prefect.logging import get_run_logger

from torchyard.common.log import LOGGER_NAME, RunLogger, set_log_source
from torchyard.common.log_filter import SafeText

P = ParamSpec("P")
R = TypeVar("R")


def make_task(function: Callable[P, R]) -> Task[P, R]:
    """Make a task without cache or stored result: state lives where the job lives, and every step can be run again."""
    decorate: Callable[[Callable[P, R]], Task[P, R]] = task(
        task_run_name=function.__name__, cache_policy=NO_CACHE, persist_result=False
    )
    return decorate(function)


def _get_run_log() -> RunLogger:
    """The run's log, or plain logging if a step is called outside of a run."""
    try:
        return get_run_logger()
    except MissingContextError:
        return logging.getLogger(LOGGER_NAME)


_ROUTINE_MESSAGES = ("Beginning flow run", "Finished in state Completed()", "View at ")  # of every run and every step


class _EngineLogFilter(SafeText):
    """Makes Prefect's engine log our own errors without a stack trace, and what every run has not at all."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, CancelledRun | CrashedRun | FailedRun):
            return False  # the flow returned its own end, and Prefect raises it only to log it
        if record.levelno == logging.INFO and record.getMessage().startswith(_ROUTINE_MESSAGES):
            return False
        return super().filter(record)


set_log_source(_get_run_log)
logging.getLogger("prefect.flow_runs").setLevel(logging.NOTSET)  # until here, prefect.yaml has kept it quiet
for logger_name in ("prefect.task_runs", "prefect.flow_runs", "prefect.engine", LOGGER_NAME):
    logging.getLogger(logger_name).addFilter(_EngineLogFilter())
