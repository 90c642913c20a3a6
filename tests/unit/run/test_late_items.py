"""What a run could not deliver, in a file of its folder."""

import logging
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from torchyard.run.folder import runs_folder
from torchyard.run.late_items import LateItems

ITEMS = LateItems("late.json", TypeAdapter(list[int]), "numbers")


@pytest.fixture
def folder() -> Path:
    folder = runs_folder() / "sample-a1b2c3d4"
    folder.mkdir(parents=True)
    (folder / "journal").write_text("")
    return folder


def test_items_are_kept_until_they_are_delivered(folder: Path) -> None:
    """Kept items are found by a sweep, replace those kept before, and leave no file once none is left."""
    ITEMS.keep(folder, [1, 2])
    ITEMS.keep(folder, [2])
    assert (ITEMS.list_folders(), ITEMS.read(folder)) == ([folder], [2])
    ITEMS.keep(folder, [])
    assert (ITEMS.list_folders(), ITEMS.read(folder), (folder / "late.json").exists()) == ([], [], False)


@pytest.mark.parametrize("text", ["{", '["x"]'])
def test_file_that_cannot_be_read_is_a_warning(folder: Path, caplog: pytest.LogCaptureFixture, text: str) -> None:
    """A damaged file is reported with its path, and has no items."""
    (folder / "late.json").write_text(text)
    with caplog.at_level(logging.WARNING):
        assert ITEMS.read(folder) == []
    assert f"{folder}/late.json cannot be read, and its numbers are lost" in caplog.text


def test_folder_that_cannot_be_written_is_a_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is raised if the items cannot be kept."""
    with caplog.at_level(logging.WARNING):
        ITEMS.keep(folder / "missing", [1])
    assert "numbers of missing cannot be kept for the next sweep" in caplog.text
