"""The log of a run: plain logging, unless whoever runs the engine has a log of its own."""

import logging
from collections.abc import Callable

RunLogger = logging.Logger | logging.LoggerAdapter[logging.Logger]
LOGGER_NAME = "torchyard"
_source: Callable[[], RunLogger] = lambda: logging.getLogger(LOGGER_NAME)  # noqa: E731 - a default that `use_log` replaces


def set_log_source(source: Callable[[], RunLogger]) -> None:
    """Let `log` give what this source gives: Prefect's log of the task that is running, for example."""
    global _source  # noqa: PLW0603 - one process has one log
    _source = source


def get_log() -> RunLogger:
    """The log to write to now."""
    return _source()
