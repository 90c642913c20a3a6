"""What every step has in common: the decorator that makes it a Prefect task, and the log that it speaks to."""

import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.exceptions import CancelledRun, CrashedRun, FailedRun, MissingContextError
from prefect.logging import get_run_logger

from torchyard.common.log import NAME, Log, use_log
from torchyard.common.log_filter import SafeText

P = ParamSpec("P")
R = TypeVar("R")


def step(function: Callable[P, R]) -> Task[P, R]:
    """A task without cache or stored result: state lives where the job lives, and every step can be run again."""
    return task(cache_policy=NO_CACHE, persist_result=False)(function)


def run_log() -> Log:
    """The run's log, or plain logging where a step is called outside of a run."""
    try:
        return get_run_logger()
    except MissingContextError:
        return logging.getLogger(NAME)


class Plain(SafeText):
    """Prefect's engine logs our own errors without its stack, or not again."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, CancelledRun | CrashedRun | FailedRun):
            return False  # the flow returned its own end, and Prefect raises it only to log it
        return super().filter(record)


use_log(run_log)
for name in ("prefect.task_runs", "prefect.flow_runs", "prefect.engine", NAME):
    logging.getLogger(name).addFilter(Plain())
