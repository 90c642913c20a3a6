"""A run's folder is copied to the archive while the run goes on."""

import logging
import os
from pathlib import Path

import pytest

from tests.histories import recorded
from tests.waiting import until
from torchyard.archive import copier
from torchyard.archive.copier import open_run_archive
from torchyard.archive.store import ARCHIVE_VARIABLE, Store
from torchyard.model.errors import ArchiveError, RunInUseError
from torchyard.run.folder import RunFolder


def accept_owner() -> None:
    """The run is still owned by this process."""


def refuse_owner() -> None:
    raise RunInUseError("runs/x", "another process")


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a store that is away for a moment only."""
    monkeypatch.setattr(copier, "_SETTLE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(copier, "_SETTLE_PAUSE_S", 0.1)
    monkeypatch.setattr(copier, "_FETCH_TIMEOUT_S", 0.1)
    monkeypatch.setattr(copier, "_FETCH_PAUSE_S", 0.1)


def break_archive(root: Path) -> None:
    """Make the archive's folder a file: neither root nor anybody else can write into it."""
    root.rename(root.with_suffix(".away"))
    root.write_text("")


def repair_archive(root: Path) -> None:
    root.unlink()
    root.with_suffix(".away").rename(root)


def add_ended_attempt(folder: RunFolder) -> None:
    (folder.attempt(1) / "node-0").mkdir(parents=True)
    (folder.attempt(1) / "node-0" / "log").write_text("a line\n")
    (folder.attempt(1) / "outcome.json").write_text("{}")


def test_journal_is_archived_while_the_run_goes_on(folder: RunFolder, store: Store) -> None:
    """What the next process needs is in the archive before the end."""
    with open_run_archive(folder.path, accept_owner, False) as archive:
        archive.start()
        folder.record_event("start", run="an-id")
        until(lambda: "journal" in store.list_files(folder.name))
        assert archive.describe() == f"{store.url}/{folder.name}"


def test_folder_is_whole_in_the_archive_at_the_end(folder: RunFolder, store: Store, root: Path) -> None:
    """The last line, the logs of ended attempts and the report are there; checkpoints and locks are not."""
    (folder.path / "checkpoints").mkdir()
    (folder.path / "checkpoints" / "model.pt").write_text("huge")
    with folder.owned(), open_run_archive(folder.path, accept_owner, False) as archive:
        archive.start()
        add_ended_attempt(folder)
        folder.record_event("end", end="succeeded")
        (folder.path / "report.json").write_text("{}")
        assert archive.settle() == ""
    assert set(store.list_files(folder.name)) == {
        "attempt-1/node-0/log",
        "attempt-1/outcome.json",
        "journal",
        "report.json",
    }
    assert RunFolder(root / folder.name).events() == folder.events()


def test_store_that_is_away_is_reported_and_delays_nothing(
    folder: RunFolder, store: Store, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The run goes on, the log has one warning, and the end says what is missing where and why."""
    break_archive(root)
    folder.record_event("start", run="an-id")
    with caplog.at_level(logging.WARNING), open_run_archive(folder.path, accept_owner, False) as archive:
        archive.start()
        add_ended_attempt(folder)
        missing = archive.settle()
    assert missing.startswith(
        f"incomplete: 2 of its records and 1 of its logs are only in {folder.path}: archive {store.url}: cannot"
    )
    assert sum("it is tried again" in message for message in caplog.messages) == 1


def test_archive_is_complete_once_the_store_is_back(folder: RunFolder, store: Store, root: Path) -> None:
    """What could not be copied is copied later."""
    break_archive(root)
    folder.record_event("start", run="an-id")
    with open_run_archive(folder.path, accept_owner, False) as archive:
        archive.start()
        until(lambda: "cannot" in archive.describe())
        repair_archive(root)
        add_ended_attempt(folder)
        assert archive.settle() == ""
    assert set(store.list_files(folder.name)) == {"attempt-1/node-0/log", "attempt-1/outcome.json", "journal"}


def test_other_owner_keeps_the_archive(folder: RunFolder, store: Store) -> None:
    """A process that has lost the run copies nothing: it would overwrite what the new owner archives."""
    folder.record_event("start", run="an-id")
    with open_run_archive(folder.path, refuse_owner, False) as archive:
        archive.start()
        folder.record_event("end", end="moved")
        archive.settle()
    assert store.list_files(folder.name) == {}


def test_run_taken_over_by_another_process_is_dropped(folder: RunFolder, store: Store) -> None:
    """The same if it is the run that notices it: its archive stays as it was at that moment."""

    def lose() -> None:
        with open_run_archive(folder.path, accept_owner, False) as archive:
            archive.start()
            until(lambda: "journal" in store.list_files(folder.name))
            archive.stop()
            folder.record_event("end", end="moved")
            refuse_owner()

    folder.record_event("start", run="an-id")
    with pytest.raises(RunInUseError):
        lose()
    assert b"moved" not in store.read(f"{folder.name}/journal")


def test_lines_that_only_the_archive_has_stay(folder: RunFolder, store: Store, root: Path) -> None:
    """A process that could not ask the archive does not delete what others have recorded there."""
    remote = RunFolder(root / folder.name)
    remote.path.mkdir()
    remote.record_event("start", run="an-id", host="first")
    folder.record_event("start", run="an-id", host="second")
    with open_run_archive(folder.path, accept_owner, True) as archive:
        archive.start()
    assert [event["host"] for event in remote.events()] == ["first", "second"]


def test_log_that_is_in_the_archive_is_not_copied_again(folder: RunFolder, store: Store, root: Path) -> None:
    """A run that is resumed does not send gigabytes a second time."""
    add_ended_attempt(folder)
    folder.record_event("start", run="an-id")
    store.write(f"{folder.name}/attempt-1/node-0/log", b"A LINE\n")  # of the same size
    with open_run_archive(folder.path, accept_owner, True) as archive:
        archive.start()
    assert store.read(f"{folder.name}/attempt-1/node-0/log") == b"A LINE\n"
    assert "journal" in store.list_files(folder.name)


def test_numbers_are_in_the_archived_history(folder: RunFolder, store: Store) -> None:
    """The run's record is one object of its history."""
    (record,) = recorded([1.5])
    with open_run_archive(folder.path, accept_owner, False) as archive:
        archive.start()
        archive.save_record(record)
    (name,) = store.list_files(f"history/{record.key.stem}")
    assert name.endswith(f"-{record.run}.json")


def test_resuming_process_fetches_the_past(folder: RunFolder, store: Store, root: Path) -> None:
    """A process without a folder of its own learns that the run has ended."""
    remote = RunFolder(root / folder.name)
    remote.path.mkdir()
    remote.record_event("end", end="succeeded", sentence="done")
    with open_run_archive(folder.path, accept_owner, True) as archive:
        assert archive.fetch()
    assert folder.last("end")["sentence"] == "done"


def test_archive_that_does_not_answer_is_not_an_empty_one(folder: RunFolder, store: Store, root: Path) -> None:
    """The run learns that the archive has said nothing, after a bounded time."""
    break_archive(root)
    with open_run_archive(folder.path, accept_owner, True) as archive:
        assert not archive.fetch()
        assert "cannot list" in archive.describe()


def test_wrong_setting_ends_only_a_run_that_has_not_begun(folder: RunFolder) -> None:
    """Before a run it is one clear error; a run that is resumed goes on without its archive, and reports it."""
    os.environ[ARCHIVE_VARIABLE] = "nowhere://x"
    with pytest.raises(ArchiveError, match="nowhere"), open_run_archive(folder.path, accept_owner, False):
        pass
    with open_run_archive(folder.path, accept_owner, True) as archive:
        assert not archive.fetch()
        assert "nowhere" in archive.describe()


def test_without_an_archive_nothing_happens(folder: RunFolder) -> None:
    """No thread, no file, no row in the report."""
    os.environ.pop(ARCHIVE_VARIABLE, None)
    (record,) = recorded([1.5])
    with open_run_archive(folder.path, accept_owner, False) as archive:
        archive.start()
        archive.save_record(record)
        assert (archive.fetch(), archive.describe(), archive.settle()) == (True, "", "")
    assert list(folder.path.iterdir()) == []
