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
    return task(cache_policy=NO_CACHE, persist_result=False)(function)


def _get_run_log() -> RunLogger:
    """The run's log, or plain logging if a step is called outside of a run."""
    try:
        return get_run_logger()
    except MissingContextError:
        return logging.getLogger(LOGGER_NAME)


class _EngineLogFilter(SafeText):
    """Makes Prefect's engine log our own errors without a stack trace, and the ends of flows not again."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, CancelledRun | CrashedRun | FailedRun):
            return False  # the flow returned its own end, and Prefect raises it only to log it
        return super().filter(record)


set_log_source(_get_run_log)
for name in ("prefect.task_runs", "prefect.flow_runs", "prefect.engine", LOGGER_NAME):
    logging.getLogger(name).addFilter(_EngineLogFilter())
