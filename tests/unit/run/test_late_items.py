"""What a run could not deliver, in a file of its folder."""

import errno
import logging
import os
from pathlib import Path
from unittest.mock import Mock

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
def test_damaged_file_is_a_warning(folder: Path, caplog: pytest.LogCaptureFixture, text: str) -> None:
    """A damaged file is reported with its path, and has no items."""
    (folder / "late.json").write_text(text)
    with caplog.at_level(logging.WARNING):
        assert ITEMS.read(folder) == []
    assert f"{folder}/late.json cannot be read, and its numbers are lost" in caplog.text


def test_file_that_cannot_be_read_keeps_its_items(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that cannot be read now is reported, and its items are there once it can."""
    ITEMS.keep(folder, [1])
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(Path, "read_bytes", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
        assert ITEMS.read(folder) is None
    assert "cannot be read now" in caplog.text
    assert ITEMS.read(folder) == [1]


def test_run_that_cannot_be_read_does_not_hide_the_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The items of a run whose folder is stale are left for the next call; without a list of runs there are none."""
    stale = folder.with_name("sample-00000000")
    stale.mkdir()
    for path in (folder, stale):
        (path / "journal").touch()
        ITEMS.keep(path, [1])
    exists = Path.exists

    def fail(path: Path) -> bool:
        if path.parent == stale:
            raise OSError(errno.ESTALE, "Stale file handle")
        return exists(path)

    monkeypatch.setattr(Path, "exists", fail)
    assert ITEMS.list_folders() == [folder]
    monkeypatch.setattr(os, "listdir", Mock(side_effect=OSError(errno.ESTALE, "Stale file handle")))
    with caplog.at_level(logging.WARNING):
        assert ITEMS.list_folders() == []
    assert "numbers of ended runs cannot be sent now" in caplog.text


def test_full_disk_does_not_lose_what_was_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If new items cannot be written, those of the last call stay."""
    ITEMS.keep(folder, [1])
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        ITEMS.keep(folder, [1, 2])
    assert ITEMS.read(folder) == [1]
    assert not list(folder.glob("*.part"))


def test_folder_that_cannot_be_written_is_a_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is raised if the items cannot be kept."""
    with caplog.at_level(logging.WARNING):
        ITEMS.keep(folder / "missing", [1])
    assert "numbers of missing cannot be kept for the next sweep" in caplog.text
