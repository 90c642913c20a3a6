"""Fixtures of several folders: the folder of a run, and a real supervised process whose run folder is removed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.removed_folders import Start, node_folder, starter
from torchyard.run.folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """The folder of a run, which has no files yet."""
    path = tmp_path / "runs" / "sample-a1b2c3d4"
    path.mkdir(parents=True)
    return RunFolder(path)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The folder of the process that `start` starts."""
    return node_folder(tmp_path)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A function that starts a process and removes its run's folder; the processes are ended after the test."""
    with starter(tmp_path) as start:
        yield start
