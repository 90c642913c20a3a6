"""An archive in a folder, and a run's folder that may be archived there."""

from pathlib import Path

import pytest

from tests.builders.archives import create_archive
from torchyard.archive.store import Store
from torchyard.run.folder import RunFolder, runs_folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The archive's folder."""
    return tmp_path / "archive"


@pytest.fixture
def store(root: Path) -> Store:
    """The archive that TORCHYARD_ARCHIVE names."""
    return create_archive(root)


@pytest.fixture
def folder() -> RunFolder:
    path = runs_folder() / "sample-a1b2c3d4"
    path.mkdir(parents=True)
    return RunFolder(path)
