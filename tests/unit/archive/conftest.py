"""An archive in a folder, and a run's folder that may be archived there."""

import os
from pathlib import Path

import pytest

from torchyard.archive.store import ARCHIVE_VARIABLE, Store
from torchyard.run.folder import RunFolder, runs_folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The archive's folder."""
    return tmp_path / "archive"


@pytest.fixture
def store(root: Path) -> Store:
    """The archive that TORCHYARD_ARCHIVE names."""
    os.environ[ARCHIVE_VARIABLE] = f"file://{root}"
    root.mkdir(0o700)
    return Store(f"file://{root}")


@pytest.fixture
def folder() -> RunFolder:
    path = runs_folder() / "sample-a1b2c3d4"
    path.mkdir(parents=True)
    return RunFolder(path)
