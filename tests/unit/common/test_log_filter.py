"""The filter of every log handler: what it removes from a message, and which stack traces it keeps."""

import logging

from torchyard.common.log_filter import SafeText
from torchyard.common.secrets import MASK
from torchyard.model.errors import FolderError
from torchyard.tasks.flow_run.step import EngineLogFilter


def record(message: str, *args: object, error: Exception | None = None) -> logging.LogRecord:
    exc_info = (type(error), error, error.__traceback__) if error else None
    return logging.LogRecord("x", logging.ERROR, "", 0, message, args, exc_info)


def test_a_line_of_the_runs_log_goes_to_prefect_without_secrets_and_escapes() -> None:
    """Log lines for Prefect lose their secrets and terminal escapes."""
    record = logging.LogRecord("x", logging.INFO, "", 0, "%s ended: \x1b[2J%s", ("node-0", "--token=abc123"), None)
    assert EngineLogFilter().filter(record)
    assert record.getMessage() == f"node-0 ended: --token={MASK}"


def test_torchyard_error_has_no_stack_trace() -> None:
    """A TorchyardError's sentence is logged in place of the message; any other error keeps its stack trace."""
    error = FolderError("/runs", "no space")
    torchyard_record = record("a step failed", error=error)
    assert SafeText().filter(torchyard_record)
    assert (torchyard_record.getMessage(), torchyard_record.exc_info) == (str(error), None)

    other_record = record("it broke", error=KeyError("a"))
    assert SafeText().filter(other_record)
    assert other_record.getMessage() == "it broke"
    assert other_record.exc_info
    assert other_record.exc_info[0] is KeyError
