"""Fixtures of several folders: a real supervised process whose run folder is removed while it runs."""

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
    """A function that starts a process and removes its run's folder; the processes are ended after the test."""
    with starter(tmp_path) as start:
        yield start
