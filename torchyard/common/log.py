"""The log of a run: plain logging, unless whoever runs the engine has a log of its own."""

import logging
from collections.abc import Callable

Log = logging.Logger | logging.LoggerAdapter[logging.Logger]
NAME = "torchyard"
_source: Callable[[], Log] = lambda: logging.getLogger(NAME)  # noqa: E731 - a default that `use_log` replaces


def use_log(source: Callable[[], Log]) -> None:
    """Let `log` give what this source gives: Prefect's log of the task that is running, for example."""
    global _source  # noqa: PLW0603 - one process has one log
    _source = source


def log() -> Log:
    """The log to write to now."""
    return _source()
