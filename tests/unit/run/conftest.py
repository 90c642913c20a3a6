"""The folder of a run on disk."""

from pathlib import Path

import pytest

from torchyard.run.folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    path = tmp_path / "runs" / "sample-a1b2c3d4"
    path.mkdir(parents=True)
    return RunFolder(path)
