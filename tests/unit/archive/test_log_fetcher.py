"""The archived logs of a resumed run are fetched while the run continues."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from torchyard.archive import log_fetcher
from torchyard.archive.log_fetcher import LogFetcher
from torchyard.archive.store import Store
from torchyard.model.errors import ArchiveError
from torchyard.run.folder import RunFolder

FIRST = "attempt-1/node-0/log"
SECOND = "attempt-2/node-0/log"


class HeldStore(Store):
    """An archive that sends no byte of a log before `release` is set, and then fails `failures` times."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.release = threading.Event()
        self.requested: list[str] = []
        self.failures = 0

    def fetch(self, name: str, path: Path, on_chunk: Callable[[], object]) -> None:
        self.requested.append(name)
        assert self.release.wait(60.0)
        if self.failures:
            self.failures -= 1
            raise ArchiveError(self.url, "connection refused")
        super().fetch(name, path, on_chunk)


@pytest.fixture
def held_store(store: Store, folder: RunFolder) -> HeldStore:
    """An archive with a log of two attempts."""
    for name in (FIRST, SECOND):
        store.write(f"{folder.name}/{name}", f"1 | a line of {name}\n".encode())
    return HeldStore(store.url)


def build_fetcher(held_store: HeldStore, folder: RunFolder, idle_timeout_s: float = 60.0) -> LogFetcher:
    return LogFetcher(held_store, folder.path, [FIRST, SECOND], idle_timeout_s)


def find_log_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "archive-logs"]


def test_logs_arrive_while_the_run_continues(held_store: HeldStore, folder: RunFolder) -> None:
    """The logs of the last attempt are fetched first, and a wait ends once those of its attempt are complete."""
    fetcher = build_fetcher(held_store, folder)
    fetcher.start()
    fetcher.wait(3)  # the archive has none of it
    assert not (folder.path / SECOND).exists()
    held_store.release.set()
    fetcher.wait(2)
    assert (folder.path / SECOND).read_text() == f"1 | a line of {SECOND}\n"
    fetcher.wait()
    assert (folder.path / FIRST).read_text() == f"1 | a line of {FIRST}\n"
    assert [name.partition("/")[2] for name in held_store.requested] == [SECOND, FIRST]


def test_log_that_does_not_arrive_is_an_error(held_store: HeldStore, folder: RunFolder) -> None:
    """A wait ends with an error if no byte arrives, or after its timeout: the log is then not known to be empty."""
    fetcher = build_fetcher(held_store, folder, idle_timeout_s=0.05)
    fetcher.start()
    with pytest.raises(ArchiveError, match="too slowly"):
        fetcher.wait(2)
    with pytest.raises(ArchiveError, match="too slowly"):
        build_fetcher(held_store, folder).wait(timeout_s=0.0)
    fetcher.stop()
    held_store.release.set()


def test_failed_log_is_fetched_again(
    held_store: HeldStore, folder: RunFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that fails is reported once, and tried again."""
    monkeypatch.setattr(log_fetcher, "_RETRY_PAUSE_S", 0.0)
    held_store.failures = 2
    held_store.release.set()
    fetcher = build_fetcher(held_store, folder)
    fetcher.start()
    fetcher.wait()
    assert (folder.path / SECOND).exists()
    assert sum("connection refused" in message for message in caplog.messages) == 1


def test_log_that_arrives_after_the_stop_is_not_in_the_folder(held_store: HeldStore, folder: RunFolder) -> None:
    """A process that has left the run does not write into its folder, which may be another process's by then."""
    fetcher = build_fetcher(held_store, folder)
    fetcher.start()
    wait_until(lambda: held_store.requested)
    fetcher.stop()
    held_store.release.set()
    for thread in find_log_threads():
        thread.join(60.0)
    assert not (folder.path / SECOND).exists()


def test_repeated_bytes_are_no_progress(held_store: HeldStore, folder: RunFolder) -> None:
    """A store that sends the first bytes of a log again and again, and then fails, does not prolong a wait."""
    fetcher = build_fetcher(held_store, folder)
    arrivals: list[float] = []
    for chunk_counts in (2, 1, 2, 3):
        fetcher._chunk_count = 0
        for _ in range(chunk_counts):
            fetcher._take_chunk()
        arrivals.append(fetcher._last_progress_at)
    assert arrivals[0] == arrivals[1] == arrivals[2] < arrivals[3]
