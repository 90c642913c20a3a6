"""Only the user can read the files of a run, with any umask."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.private_modes import list_accessible_to_others
from torchyard.cluster.logs.log_file import LogWriter
from torchyard.common.private_files import make_private_folder, open_private_file, write_private_text
from torchyard.host.staging import OwnerFile
from torchyard.host.state import write_state
from torchyard.machines.log_copy import append_bytes
from torchyard.run.folder import RunFolder


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    """The umask of most machines, with which all users may read new files."""
    previous_umask = os.umask(0o022)
    yield
    os.umask(previous_umask)


def get_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_missing_parents_are_private_and_existing_ones_keep_their_mode(tmp_path: Path) -> None:
    """Each folder that is created is private; an existing one keeps its mode, and the umask is not changed."""
    (tmp_path / "shared").mkdir()
    make_private_folder(tmp_path / "shared" / "run" / "attempt-1")
    make_private_folder(tmp_path / "shared")
    assert [get_mode(tmp_path / path) for path in ("shared", "shared/run", "shared/run/attempt-1")] == [
        0o755,
        0o700,
        0o700,
    ]
    (tmp_path / "program").touch()
    assert get_mode(tmp_path / "program") == 0o644


def test_file_made_readable_by_a_person_stays_readable(tmp_path: Path) -> None:
    """A new file is private; an existing file keeps its mode when it is written."""
    write_private_text(tmp_path / "new", "x")
    write_private_text(tmp_path / "opened", "x")
    (tmp_path / "opened").chmod(0o644)
    write_private_text(tmp_path / "opened", "y")
    with open(tmp_path / "log", "ab", opener=open_private_file) as file:
        file.write(b"z")
    assert [get_mode(tmp_path / name) for name in ("new", "opened", "log")] == [0o600, 0o644, 0o600]
    assert (tmp_path / "opened").read_text() == "y"


def test_every_file_of_a_run_is_private(tmp_path: Path) -> None:
    """The journal, the lease, copies of logs, a supervisor's state and its heartbeat file are private."""
    folder = RunFolder(tmp_path / "runs" / "x-1")
    with folder.owned():
        folder.record_event("start")
        folder.renew(60)
        append_bytes(folder.attempt(1) / "node-0" / "log", b"x\n")
        LogWriter(folder.attempt(1) / "worker-0" / "log", "worker-0").record_gap("something")
        write_state(str(folder.attempt(1) / "node-0"), phase="running")
        OwnerFile(str(folder.attempt(1) / "owner")).record_heartbeat("me")
    assert list_accessible_to_others(tmp_path / "runs") == []


def test_folder_made_readable_by_a_person_stays_readable(tmp_path: Path) -> None:
    """A folder's mode is set only when it is created; a folder of the previous version can still be used."""
    folder = RunFolder(tmp_path / "x-1")
    folder.path.mkdir(0o755)
    (folder.path / "lock").touch(0o644)
    with folder.owned():
        folder.record_event("start")
    assert list_accessible_to_others(folder.path) == [".", "lock"]
    assert folder.events()[0]["event"] == "start"
