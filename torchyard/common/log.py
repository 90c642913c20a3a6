"""The log of a run: Python's logging, unless the program that runs the engine sets its own log; and its filter."""

import logging
from collections.abc import Callable

from torchyard.common.escaping import strip_control_codes
from torchyard.common.secrets import mask_text
from torchyard.model.errors import TorchyardError

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


class SafeText(logging.Filter):
    """A filter for every log handler: escape and mask the message of each record, in place; none is dropped.

    A TorchyardError is a complete sentence: it replaces the message, and its stack trace is not logged.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, TorchyardError):
            message = str(error)
            record.exc_info = None
            record.exc_text = None
        else:
            message = record.getMessage()
        record.msg = mask_text(strip_control_codes(message))
        record.args = ()
        return True
