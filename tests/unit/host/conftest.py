"""A folder for the supervised process of a test, and jobs of Run:ai."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doubles.runai_jobs import cli, runai_planned
from tests.processes.supervised import call_supervisor

__all__ = ["cli", "runai_planned"]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder whose process does not outlive the test."""
    yield tmp_path / "kept"
    call_supervisor("cancel", tmp_path / "kept", grace=0)
