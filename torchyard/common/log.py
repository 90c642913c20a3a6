"""The log of a run: plain logging, unless the program that runs the engine has a log of its own."""

import logging
from collections.abc import Callable

RunLogger = logging.Logger | logging.LoggerAdapter[logging.Logger]
LOGGER_NAME = "torchyard"
_source: Callable[[], RunLogger] = lambda: logging.getLogger(LOGGER_NAME)  # noqa: E731 - a replaceable default


def set_log_source(source: Callable[[], RunLogger]) -> None:
    """Make `get_log` return what this source returns, for example Prefect's log of the running task."""
    global _source  # noqa: PLW0603 - one process has one log
    _source = source


def get_log() -> RunLogger:
    """The log to write to now."""
    return _source()
