"""The holder of a run: the identity of a machine and folder, and when two of them are the same."""

import errno
import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import containers
from tests.processes.containers import Container, run_container
from torchyard.common import identity
from torchyard.common.identity import claim_id, identify_holder, identify_machine
from torchyard.common.project_root import ROOT
from torchyard.run.folder import RunFolder, runs_folder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    path = tmp_path / "runs" / "sample-a1b2c3d4"
    path.mkdir(parents=True)
    return RunFolder(path)


def test_holder_is_the_same_in_every_process(folder: RunFolder) -> None:
    """Every process, also after a restart, gives a run's folder the same identity."""
    code = "import sys; from torchyard.common.identity import identify_holder; print(identify_holder(sys.argv[1]))"
    process = subprocess.run(
        [sys.executable, "-c", code, str(folder.path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == identify_holder(str(folder.path))
    assert process.stdout.startswith(f"{socket.gethostname()}:{folder.path}#")


def test_containers_with_one_name_are_two_holders(folder: RunFolder) -> None:
    """Two containers with the same name and path but separate disks have different identities."""
    holder = identify_holder(str(folder.path))
    (folder.path.parent / ".id").unlink()
    claim_id.cache_clear()  # as in a process of the other container
    assert identify_holder(str(folder.path)) != holder


@pytest.mark.skipif(bool(containers.find_obstacle()), reason=containers.find_obstacle())
def test_containers_with_one_name_and_one_volume_are_two_holders(folder: RunFolder) -> None:
    """Living containers that share name, path and volume have different ids; one that is restarted keeps its id."""
    with run_container("worker") as first, run_container("worker") as second:
        first_identity = start_holder(first, folder)
        second_identity = start_holder(second, folder)
        assert first_identity.partition("#")[0] == second_identity.partition("#")[0]
        assert first_identity != second_identity
    with run_container("worker") as restarted:
        assert start_holder(restarted, folder) == first_identity


def start_holder(container: Container, folder: RunFolder) -> str:
    """Start a process in a container that holds runs until the container ends; return its identity."""
    code = (
        "import sys, time; from torchyard.common.identity import identify_holder; "
        "print(identify_holder(sys.argv[1]), flush=True); time.sleep(60)"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = container.start(sys.executable, "-c", code, str(folder.path), stdout=subprocess.PIPE, env=environment)
    assert process.stdout
    return process.stdout.readline().decode().strip()


def test_interrupted_claim_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a process claims its id blocks no later claim, of this process or of another one."""

    def interrupt(fd: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            claim_id(tmp_path)
    with open(tmp_path / ".id") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert claim_id(tmp_path)


def test_holder_without_a_disk_is_host_and_folder() -> None:
    """If no id can be stored, the identity is just host and folder."""
    assert identify_holder("/proc/no-such-folder/run") == f"{socket.gethostname()}:/proc/no-such-folder/run"


def test_holder_does_not_change_within_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the runs is made for the id; if that fails, a later success does not change the holder."""
    path = tmp_path / "runs" / "sample-a1b2c3d4"
    holder = identify_holder(str(path))
    path.mkdir()
    assert identify_holder(str(path)) == holder
    assert "#" in holder

    other_path = tmp_path / "other" / "sample-a1b2c3d4"
    with monkeypatch.context() as context:
        context.setattr(identity, "make_private_folder", fail_on_a_full_disk)
        holder = identify_holder(str(other_path))
    other_path.mkdir(parents=True)
    assert identify_holder(str(other_path)) == holder
    assert "#" not in holder


def fail_on_a_full_disk(_: Path) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_empty_id_is_replaced(folder: RunFolder) -> None:
    """An id that a power cut has emptied is replaced by a new one, so that folders stay distinct."""
    (runs_folder() / ".id").write_bytes(b"\0" * 13)
    assert len(identify_holder(str(folder.path)).rpartition("#")[2]) == 12


def test_machine_is_the_holder_of_all_its_runs(folder: RunFolder) -> None:
    """The machine's identity is that of its runs without a run's name."""
    machine = identify_machine(folder.path.parent)
    assert machine == identify_holder(str(folder.path)).replace(f"/{folder.name}#", "#")
    assert identify_machine(folder.path.parent.parent) != machine
