"""The log of a run: Python's logging, unless the program that runs the engine sets its own log."""

import logging
from collections.abc import Callable

RunLogger = logging.Logger | logging.LoggerAdapter[logging.Logger]
LOGGER_NAME = "torchyard"


def _get_default_log() -> RunLogger:
    return logging.getLogger(LOGGER_NAME)


_source: Callable[[], RunLogger] = _get_default_log


def set_log_source(source: Callable[[], RunLogger]) -> Callable[[], RunLogger]:
    """Make `get_log` return what this source returns, for example Prefect's log of the running task.

    Returns the previous source, as `signal.signal` does, for a caller that restores it.
    """
    global _source  # noqa: PLW0603 - one process has one log
    previous_source = _source
    _source = source
    return previous_source


def get_log() -> RunLogger:
    """The current log. Call this for each message: the program may set another source at any time."""
    return _source()
