"""Fixtures of several rooms: a real supervised process whose run folder is removed while it runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.removed_folders import Start, node_folder, starter


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The folder of the process that `start` starts."""
    return node_folder(tmp_path)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a process and remove its run's folder; nothing outlives the test."""
    with starter(tmp_path) as begin:
        yield begin
