"""`torchyard archive init`."""

import os
from pathlib import Path

import pytest

from torchyard.archive.store import ARCHIVE_VARIABLE
from torchyard.cli.main import main


def test_archive_is_created(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command creates the archive; a second call changes nothing and succeeds."""
    os.environ[ARCHIVE_VARIABLE] = f"file://{tmp_path}/archive"
    assert (main(["archive", "init"]), main(["archive", "init"])) == (0, 0)
    url = f"file://{tmp_path}/archive"
    assert capsys.readouterr().out.splitlines() == [f"created the archive {url}", f"{url} is an archive already"]


def test_command_without_a_url_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Without TORCHYARD_ARCHIVE the error describes what to set."""
    os.environ.pop(ARCHIVE_VARIABLE, None)
    assert main(["archive", "init"]) == 3
    assert "TORCHYARD_ARCHIVE" in capsys.readouterr().err
