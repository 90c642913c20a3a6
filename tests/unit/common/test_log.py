"""The log of a run: where its messages go, what its filter removes, and which stack traces it keeps."""

import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from torchyard.common.log import LOGGER_NAME, SafeText, get_log, set_log_source
from torchyard.common.project_root import ROOT
from torchyard.common.secrets import MASK
from torchyard.model.errors import FolderError
from torchyard.tasks.flow_run.step import EngineLogFilter


@pytest.fixture(autouse=True)
def same_source() -> Iterator[None]:
    """Restore the source of the log after each test."""
    previous_source = set_log_source(lambda: logging.getLogger(LOGGER_NAME))
    yield
    set_log_source(previous_source)


def test_lines_go_to_the_source_that_the_program_sets(caplog: pytest.LogCaptureFixture) -> None:
    """After `set_log_source` every line goes to the logger that the source returns at that moment."""
    names = iter(["first", "second"])
    set_log_source(lambda: logging.getLogger(next(names)))
    for _ in range(2):
        get_log().warning("a line")
    assert [record.name for record in caplog.records] == ["first", "second"]


def test_engine_alone_writes_to_its_own_logger() -> None:
    """In a process that imports only the engine, and sets no source, the logger is `torchyard`."""
    code = "from torchyard.common.log import get_log; print(get_log().name)"
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert process.stdout.strip() == LOGGER_NAME == "torchyard"


# --- the filter


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
