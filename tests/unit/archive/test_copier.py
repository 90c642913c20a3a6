"""A run's folder is copied to the archive while the run continues."""

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.builders.archives import archive_run
from tests.builders.histories import build_records
from tests.support.waiting import wait_until
from tests.unit.diagnosis.test_checkpoints import build_checkpoint
from torchyard.archive.contents import RECORD, is_journal
from torchyard.archive.copier import ArchiveTimeouts, RunArchive, open_run_archive
from torchyard.archive.fetch import fetch_run
from torchyard.archive.store import ARCHIVE_VARIABLE, Store
from torchyard.model.errors import ArchiveError, NoArchiveError, RunInUseError
from torchyard.run.folder import RunFolder


def accept_owner() -> None:
    """The run is still owned by this process."""


def refuse_owner() -> None:
    raise RunInUseError("runs/x", "another process")


def open_archive(
    path: Path, check_owner: Callable[[], None] = accept_owner, *, is_resumed: bool = False
) -> AbstractContextManager[RunArchive]:
    """The archive of a run that waits only a moment for a store that cannot be reached."""
    timeouts = ArchiveTimeouts(fetch_s=0.1, fetch_pause_s=0.1, settle_s=0.1, settle_pause_s=0.1)
    return open_run_archive(path, check_owner, is_resumed=is_resumed, timeouts=timeouts)


def break_archive(root: Path) -> None:
    """Make the archive's folder a file, so that no user, root included, can write into it."""
    root.rename(root.with_suffix(".away"))
    root.write_text("")


def repair_archive(root: Path) -> None:
    root.unlink()
    root.with_suffix(".away").rename(root)


def list_archived(store: Store, folder: RunFolder) -> set[str]:
    """The files of a run in the archive, with the journal of its only process as `journal`."""
    names = [name.partition("-")[0] if is_journal(name) else name for name in store.list_files(folder.name)]
    assert names.count("journal") <= 1
    return set(names)


def read_archived_events(store: Store, folder: RunFolder, tmp_path: Path) -> list[dict[str, Any]]:
    """The run's events in the archive, as another machine fetches them."""
    fetched = RunFolder(tmp_path / "fetched" / folder.name)
    fetch_run(store, fetched.path)
    return fetched.events()


def add_ended_attempt(folder: RunFolder) -> None:
    (folder.attempt(1) / "node-0").mkdir(parents=True)
    (folder.attempt(1) / "node-0" / "log").write_text("a line\n")
    (folder.attempt(1) / "outcome.json").write_text("{}")


def test_journal_is_archived_while_the_run_continues(folder: RunFolder, store: Store) -> None:
    """The journal is in the archive before the end of the run, for a process that resumes the run."""
    with open_archive(folder.path) as archive:
        archive.start()
        folder.record_event("start", run="an-id")
        wait_until(lambda: "journal" in list_archived(store, folder))
        assert archive.describe() == f"{store.url}/{folder.name}"


def test_archive_is_complete_at_the_end(folder: RunFolder, store: Store, tmp_path: Path) -> None:
    """After `settle` the archive contains the last line, the logs and the report, but no checkpoints and locks."""
    (folder.path / "checkpoints").mkdir()
    (folder.path / "checkpoints" / "model.pt").write_text("huge")
    with folder.owned(), open_archive(folder.path) as archive:
        archive.start()
        add_ended_attempt(folder)
        folder.record_event("end", end="succeeded")
        (folder.path / "report.json").write_text("{}")
        assert archive.settle() is None
    assert list_archived(store, folder) == {
        "attempt-1/node-0/log",
        "attempt-1/outcome.json",
        "journal",
        "report.json",
    }
    assert read_archived_events(store, folder, tmp_path) == folder.events()


def test_unreachable_store_is_reported_once(
    folder: RunFolder, store: Store, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that fails is one warning in the log, and `settle` returns what is missing where and why."""
    break_archive(root)
    folder.record_event("start", run="an-id")
    with caplog.at_level(logging.WARNING), open_archive(folder.path) as archive:
        archive.start()
        wait_until(lambda: "cannot" in archive.describe())
        add_ended_attempt(folder)
        missing = archive.settle()
    assert missing is not None
    assert missing.startswith(
        f"incomplete: 2 of its records and 1 of its logs are only in {folder.path}: archive {store.url}: cannot"
    )
    assert sum("(retrying; the run is not affected)" in message for message in caplog.messages) == 1


def test_archive_is_complete_after_the_store_recovers(folder: RunFolder, store: Store, root: Path) -> None:
    """Files that could not be copied are copied once the store works again."""
    break_archive(root)
    folder.record_event("start", run="an-id")
    with open_archive(folder.path) as archive:
        archive.start()
        wait_until(lambda: "cannot" in archive.describe())
        repair_archive(root)
        add_ended_attempt(folder)
        assert archive.settle() is None
    assert list_archived(store, folder) == {"attempt-1/node-0/log", "attempt-1/outcome.json", "journal"}


def test_other_owner_keeps_the_archive(folder: RunFolder, store: Store) -> None:
    """A process that has lost the run copies nothing, because it would overwrite the new owner's files."""
    folder.record_event("start", run="an-id")
    with open_archive(folder.path, refuse_owner) as archive:
        archive.start()
        folder.record_event("end", end="moved")
        archive.settle()
    assert store.list_files(folder.name) == {}


def test_nothing_is_copied_after_the_run_was_taken_over(folder: RunFolder, store: Store, tmp_path: Path) -> None:
    """If the run itself raises RunInUseError, its archive stays as it was at that moment."""

    def lose() -> None:
        with open_archive(folder.path) as archive:
            archive.start()
            wait_until(lambda: "journal" in list_archived(store, folder))
            archive.stop()
            folder.record_event("end", end="moved")
            refuse_owner()

    folder.record_event("start", run="an-id")
    with pytest.raises(RunInUseError):
        lose()
    assert [event["event"] for event in read_archived_events(store, folder, tmp_path)] == ["start"]


def test_lost_process_keeps_the_lines_of_the_run(folder: RunFolder, store: Store, tmp_path: Path) -> None:
    """A process that has lost the run without noticing it cannot remove the end that another process recorded."""
    other = RunFolder(tmp_path / "other-machine" / folder.name)
    other.path.mkdir(parents=True)
    folder.record_event("start", run="an-id", host="lost")
    with open_archive(folder.path) as lost_archive:
        lost_archive.start()
        wait_until(lambda: "journal" in list_archived(store, folder))
        with open_archive(other.path, is_resumed=True) as archive:
            assert archive.fetch()
            archive.start()
            other.record_event("end", end="succeeded")
        ended_at = other.events()[-1]["at"]
        wait_until(lambda: time.time() > ended_at + 0.002)  # events are in the order of their times, in milliseconds
        folder.record_event("step", name="wait")
    events = read_archived_events(store, folder, tmp_path)
    assert [event["event"] for event in events] == ["start", "end", "step"]


def test_new_run_is_not_started_without_its_archive(folder: RunFolder, store: Store, root: Path) -> None:
    """A new run whose archive is not mounted is not started, and nothing is written below the mount point."""
    root.rename(root.with_suffix(".away"))
    root.mkdir()
    with pytest.raises(NoArchiveError, match="not mounted"), open_archive(folder.path):
        pass
    assert list(root.iterdir()) == []


def test_resumed_run_does_not_take_an_unmounted_archive_for_empty(folder: RunFolder, store: Store, root: Path) -> None:
    """A resumed run whose archive is not mounted cannot fetch its past, and writes nothing below the mount point."""
    root.rename(root.with_suffix(".away"))
    root.mkdir()
    folder.record_event("start", run="an-id")
    with open_archive(folder.path, is_resumed=True) as archive:
        assert not archive.fetch()
        archive.start()
        assert "not mounted" in (archive.settle() or "")
    assert list(root.iterdir()) == []


def test_past_that_was_not_fetched_is_not_replaced(folder: RunFolder, store: Store, root: Path) -> None:
    """If the archive did not answer, it gets what this process records, and keeps what another machine recorded."""
    add_ended_attempt(folder)
    folder.record_event("start", run="an-id")
    (folder.attempt(1) / "ended.json").write_text("older")
    (folder.attempt(1) / "hang").mkdir()
    (folder.attempt(1) / "hang" / "hang.txt").write_text("only here")
    store.write(f"{folder.name}/attempt-1/outcome.json", b"newer")
    store.write(f"{folder.name}/attempt-1/ended.json", b"newer")
    store.write(f"{folder.name}/attempt-1/node-0/log", b"a line\nanother line\n")
    break_archive(root)
    with open_archive(folder.path, is_resumed=True) as archive:
        assert not archive.fetch()
        archive.start()
        (folder.attempt(1) / "ended.json").write_text("newest")
        repair_archive(root)
        assert archive.settle() is None
    contents = {name: store.read(f"{folder.name}/attempt-1/{name}") for name in ("outcome.json", "ended.json")}
    assert contents == {"outcome.json": b"newer", "ended.json": b"newest"}
    assert store.read(f"{folder.name}/attempt-1/node-0/log") == b"a line\nanother line\n"
    assert {"journal", "attempt-1/hang/hang.txt"} <= list_archived(store, folder)


def test_archived_log_is_not_copied_again(folder: RunFolder, store: Store, root: Path) -> None:
    """A resumed run does not copy a log whose size in the archive is that of the local one."""
    add_ended_attempt(folder)
    folder.record_event("start", run="an-id")
    store.write(f"{folder.name}/attempt-1/node-0/log", b"A LINE\n")  # of the same size
    with open_archive(folder.path, is_resumed=True) as archive:
        archive.start()
    assert store.read(f"{folder.name}/attempt-1/node-0/log") == b"A LINE\n"
    assert "journal" in list_archived(store, folder)


def test_numbers_are_in_the_archived_history(folder: RunFolder, store: Store) -> None:
    """The run's record is one object of its history in the archive."""
    (record,) = build_records([1.5])
    (folder.path / RECORD).write_text(record.model_dump_json(exclude_defaults=True))
    with open_archive(folder.path) as archive:
        archive.start()
    (name,) = store.list_files(f"history/{record.key.stem}")
    assert name.endswith(f"-{record.run}.json")


def test_resuming_process_fetches_the_past(folder: RunFolder, store: Store, root: Path, tmp_path: Path) -> None:
    """A process whose folder is empty fetches the journal, and with it the end of the run."""
    remote = RunFolder(tmp_path / "other-machine" / folder.name)
    remote.path.mkdir(parents=True)
    remote.record_event("end", end="succeeded", sentence="done")
    archive_run(root, remote)
    with open_archive(folder.path, is_resumed=True) as archive:
        assert archive.fetch()
    assert folder.read_record().find_last("end")["sentence"] == "done"


def test_checkpoints_are_known_on_another_machine(folder: RunFolder, store: Store, tmp_path: Path) -> None:
    """What is known of a run's checkpoints is archived, so that an attempt on another machine continues from them."""
    checkpoint = build_checkpoint("/shared/step-900.pt")
    with open_archive(folder.path) as archive:
        archive.start()
        folder.record_event("start", run="an-id")
        folder.save_checkpoints(1, [checkpoint])
    fetched = RunFolder(tmp_path / "fetched" / folder.name)
    fetch_run(store, fetched.path)
    assert fetched.checkpoints() == (checkpoint,)


def test_fetch_that_was_given_up_writes_nothing(
    folder: RunFolder, store: Store, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a store answers after the timeout changes nothing: the run has continued, and recorded its end."""
    remote = RunFolder(tmp_path / "other-machine" / folder.name)
    remote.path.mkdir(parents=True)
    remote.record_event("start", run="an-id")
    (remote.path / "report.json").write_text("older")
    archive_run(root, remote)
    release = threading.Event()
    list_files = Store.list_files

    def list_late(store: Store, name: str) -> dict[str, int]:
        assert release.wait(60.0)
        return list_files(store, name)

    monkeypatch.setattr(Store, "list_files", list_late)
    with open_archive(folder.path, is_resumed=True) as archive:
        assert not archive.fetch()
        folder.record_event("end", end="succeeded", sentence="done")
        (folder.path / "report.json").write_text("newer")
        release.set()
        for thread in threading.enumerate():
            if thread.name == "archive":
                thread.join(60.0)
    assert [event["event"] for event in folder.events()] == ["end"]
    assert (folder.path / "report.json").read_text() == "newer"


def test_large_log_does_not_delay_the_decision(
    folder: RunFolder, store: Store, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records are fetched although a log does not arrive; who needs this log waits for it, and gets an error."""
    remote = RunFolder(tmp_path / "other-machine" / folder.name)
    remote.path.mkdir(parents=True)
    remote.record_event("start", run="an-id")
    add_ended_attempt(remote)
    archive_run(root, remote)
    release = threading.Event()
    monkeypatch.setattr(Store, "fetch", lambda *_: release.wait(60.0))
    with open_archive(folder.path, is_resumed=True) as archive:
        assert archive.fetch()
        assert (folder.events(), (folder.attempt(1) / "outcome.json").exists()) == (remote.events(), True)
        archive.await_logs(2)
        with pytest.raises(ArchiveError, match="too slowly"):
            archive.await_logs(1)
    release.set()


def test_logs_are_fetched_before_the_process_ends(folder: RunFolder, store: Store, root: Path, tmp_path: Path) -> None:
    """A run that ends at once, as one that had ended already, has its logs in the folder."""
    remote = RunFolder(tmp_path / "other-machine" / folder.name)
    remote.path.mkdir(parents=True)
    remote.record_event("start", run="an-id")
    add_ended_attempt(remote)
    archive_run(root, remote)
    with open_run_archive(folder.path, accept_owner, is_resumed=True) as archive:
        assert archive.fetch()
    assert (folder.attempt(1) / "node-0" / "log").read_text() == "a line\n"


def test_archive_that_does_not_answer_is_not_empty(folder: RunFolder, store: Store, root: Path) -> None:
    """`fetch` returns False, after a bounded time, if the archive does not answer."""
    break_archive(root)
    with open_archive(folder.path, is_resumed=True) as archive:
        assert not archive.fetch()
        assert "cannot read" in archive.describe()


def test_wrong_setting_ends_only_a_new_run(folder: RunFolder) -> None:
    """A wrong URL is an error for a new run; a resumed run continues without its archive, and reports the error."""
    os.environ[ARCHIVE_VARIABLE] = "nowhere://x"
    with pytest.raises(ArchiveError, match="nowhere"), open_archive(folder.path):
        pass
    with open_archive(folder.path, is_resumed=True) as archive:
        assert not archive.fetch()
        assert "nowhere" in archive.describe()


def test_without_an_archive_nothing_happens(folder: RunFolder) -> None:
    """Without an archive there is no file and no row in the report."""
    os.environ.pop(ARCHIVE_VARIABLE, None)
    with open_archive(folder.path) as archive:
        archive.start()
        assert (archive.fetch(), archive.describe(), archive.settle()) == (True, "", None)
    assert list(folder.path.iterdir()) == []
