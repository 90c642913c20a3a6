"""The filter of every log handler: what it takes out of a line, and whose stack trace it leaves."""

import logging

from torchyard.common.log_filter import SafeText
from torchyard.common.secrets import _MASK
from torchyard.model.errors import FolderError
from torchyard.tasks.flow_run.step import _EngineLogFilter


def record(message: str, *args: object, error: Exception | None = None) -> logging.LogRecord:
    exc_info = (type(error), error, error.__traceback__) if error else None
    return logging.LogRecord("x", logging.ERROR, "", 0, message, args, exc_info)


def test_a_line_of_the_runs_log_goes_to_prefect_without_secrets_and_escapes() -> None:
    """Log lines for Prefect lose their secrets and terminal escapes."""
    record = logging.LogRecord("x", logging.INFO, "", 0, "%s ended: \x1b[2J%s", ("node-0", "--token=abc123"), None)
    assert _EngineLogFilter().filter(record)
    assert record.getMessage() == f"node-0 ended: --token={_MASK}"


def test_torchyard_error_has_no_stack_trace() -> None:
    """Of our own error the sentence is logged in place of the message; any other error keeps its stack trace."""
    own_record, other_record = (
        record("a step failed", error=FolderError("/runs", "no space")),
        record("it broke", error=KeyError("a")),
    )
    for log_record in (own_record, other_record):
        assert SafeText().filter(log_record)
    assert (own_record.getMessage(), own_record.exc_info) == (str(FolderError("/runs", "no space")), None)
    assert (other_record.getMessage(), other_record.exc_info and other_record.exc_info[0]) == ("it broke", KeyError)
