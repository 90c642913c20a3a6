"""The log of a run: where its messages go, and that the source can be replaced at any time."""

import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from torchyard.common.log import LOGGER_NAME, get_log, set_log_source
from torchyard.common.project_root import ROOT


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
