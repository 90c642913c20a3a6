"""The archive in a local folder; tests/local/test_archive.py has one with a real S3 API."""

import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchyard.archive.store import ARCHIVE_VARIABLE, Store, call_bounded, open_store
from torchyard.common.project_root import ROOT
from torchyard.model.errors import ArchiveError, NoArchiveError


def test_stored_files_are_listed_read_and_fetched(store: Store, tmp_path: Path) -> None:
    """Files that were written or copied are listed with their sizes, read and fetched, whatever their folder."""
    (tmp_path / "log").write_bytes(b"line\n")
    store.write("run-1/journal", b"{}")
    store.copy(tmp_path / "log", "run-1/attempt-1/node-0/log", lambda: None)
    store.fetch("run-1/attempt-1/node-0/log", tmp_path / "fetched", lambda: None)
    assert store.list_files("run-1") == {"journal": 2, "attempt-1/node-0/log": 5}
    assert (store.read("run-1/journal"), (tmp_path / "fetched").read_bytes()) == (b"{}", b"line\n")
    assert store.read_all(["run-1/journal"]) == {"run-1/journal": b"{}"}
    assert store.list_runs() == ["run-1"]


def test_missing_folder_is_empty(store: Store) -> None:
    """A run that was never archived has no files, which is not an error."""
    assert store.list_files("run-1") == {}


def test_unreadable_archive_is_an_error(store: Store, root: Path) -> None:
    """An archive that cannot be read is an ArchiveError, not an empty archive."""
    shutil.rmtree(root)
    root.write_text("no folder")
    with pytest.raises(ArchiveError, match="cannot read torchyard-archive"):
        store.list_files("run-1")
    with pytest.raises(ArchiveError, match="cannot read torchyard-archive"):
        store.write("run-1/journal", b"")


def test_folder_that_cannot_be_listed_is_an_error(store: Store, root: Path) -> None:
    """A run's folder that cannot be listed is an ArchiveError, not a run without files."""
    (root / "run-1").write_text("no folder")
    with pytest.raises(ArchiveError, match="cannot list run-1"):
        store.list_files("run-1/attempt-1")


def test_share_that_is_not_mounted_is_not_an_empty_archive(store: Store, root: Path) -> None:
    """Without its marker a root is refused: reading proves nothing, and nothing is written below a mount point."""
    store.write("run-1/journal", b"{}")
    root.rename(root.with_suffix(".away"))
    root.mkdir()
    for call in (lambda: store.list_files("run-1"), store.list_runs, lambda: store.write("run-2/journal", b"{}")):
        with pytest.raises(NoArchiveError, match="not mounted, or not an archive"):
            call()
    assert list(root.iterdir()) == []


def test_share_that_is_unmounted_during_a_call_is_not_empty(store: Store, root: Path) -> None:
    """A listing that was empty because the share was unmounted meanwhile is an error."""

    def unmount_and_list() -> dict[str, int]:
        shutil.rmtree(root)
        return {}

    with pytest.raises(NoArchiveError):
        store._call("list run-1", unmount_and_list)


def test_archive_is_created_once(root: Path) -> None:
    """`initialize` writes the marker of a new archive, and leaves an existing one unchanged."""
    store = Store(f"file://{root}/deep")
    assert (store.has_marker(), store.initialize(), store.initialize()) == (False, True, False)
    assert store.list_runs() == []


def test_folders_are_private(store: Store, root: Path) -> None:
    """Only this user can read a run's folder in an archive on a disk, because plans may contain secrets."""
    store.write("run-1/journal", b"{}")
    assert {stat.S_IMODE(path.stat().st_mode) for path in (root, root / "run-1")} == {0o700}


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3:/bucket", r"not a URL such as s3://BUCKET/PREFIX"),
        ("s3://", r"not a URL such as s3://BUCKET/PREFIX"),
        ("nowhere://bucket", r"nowhere.*set TORCHYARD_ARCHIVE to another URL, or unset it"),
        ("gs://bucket", r"an archive at gs:// needs gcsfs, which is not installed in .*pip install gcsfs$"),
        ("sftp://host/folder", r"package for sftp:// is missing: .*paramiko.*; install that package"),
    ],
)
def test_wrong_url_is_an_error_with_a_remedy(url: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error contains the URL, what is wrong with it, and what to do."""
    for module in ("gcsfs", "paramiko"):
        monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    os.environ[ARCHIVE_VARIABLE] = url
    with pytest.raises(ArchiveError, match=message) as caught:
        open_store()
    assert url in str(caught.value)


def test_password_in_the_url_is_not_shown() -> None:
    """Errors and reports contain the archive's URL without its password."""
    os.environ[ARCHIVE_VARIABLE] = "nowhere://user:hunter22@host/x"
    with pytest.raises(ArchiveError, match="user:") as caught:
        open_store()
    assert "hunter22" not in str(caught.value)
    assert Store("memory://user:hunter22@host/x").url == "memory://user:****@host/x"


def test_no_archive_is_no_store() -> None:
    """Without the variable nothing is archived."""
    os.environ.pop(ARCHIVE_VARIABLE, None)
    assert open_store() is None


def test_call_ends_after_its_timeout() -> None:
    """A call that hangs is an ArchiveError after the timeout, and an error of the store is raised as it is."""
    with pytest.raises(ArchiveError, match="no answer"):
        call_bounded(lambda: time.sleep(30), 0.01, "s3://x")
    with pytest.raises(ArchiveError, match="refused"):
        call_bounded(lambda: (_ for _ in ()).throw(ArchiveError("s3://x", "refused")), 30.0, "s3://x")
    assert call_bounded(lambda: 7, 30.0, "s3://x") == 7


def test_error_in_a_bounded_call_is_not_a_timeout() -> None:
    """What a call raises about the content that it has read is reported as it is, and not as a missing answer."""

    def read_time() -> None:
        raise OverflowError("timestamp out of range")

    with pytest.raises(ArchiveError, match="OverflowError: timestamp out of range") as caught:
        call_bounded(read_time, 30.0, "s3://x")
    assert isinstance(caught.value.__cause__, OverflowError)


def test_fsspec_is_imported_only_for_an_archive() -> None:
    """Without an archive fsspec, which takes long to import, is not imported."""
    code = (
        "import sys, torchyard.run.runner, torchyard.archive.store as s; s.open_store(); print('fsspec' in sys.modules)"
    )
    env = {name: value for name, value in os.environ.items() if name != ARCHIVE_VARIABLE}
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    assert process.stdout == "False\n"
