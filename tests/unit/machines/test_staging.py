"""What is staged in on a host: the program's files, the checkpoints of the previous attempt, and the scripts."""

import errno
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest

from tests.conftest import Write, command_plan_of, load
from torchyard.machines import staging
from torchyard.machines.host_command import SCRIPTS_FOLDER
from torchyard.machines.staging import (
    list_checkpoints,
    remove_incomplete_folders,
    stage_in,
    walk_files,
)
from torchyard.model.errors import FolderError
from torchyard.model.plan import Site


def test_next_attempt_takes_checkpoints_from_any_host(write: Write, tmp_path: Path) -> None:
    """An attempt on other hosts still gets the checkpoints of every former host."""
    profile = load(write(nodes=2, options={"hosts": ["a", "b", "c"], "avoid": ["a"]}))
    (site, _) = command_plan_of(profile, tmp_path, attempt=2).sites
    for node in (0, 1):
        (tmp_path / f"attempt-1/node-{node}/files/checkpoints").mkdir(parents=True)
        (tmp_path / f"attempt-1/node-{node}/files/checkpoints/{node}.pt").touch()
    assert [name for _, name in list_checkpoints(site.previous_folders)] == ["checkpoints/0.pt", "checkpoints/1.pt"]


def test_checkpoints_are_found_in_listed_folders(tmp_path: Path) -> None:
    """A plan may list the folders of the previous attempt one by one, even with special characters in a name."""
    (tmp_path / "[1]" / "checkpoints").mkdir(parents=True)
    (tmp_path / "[1]" / "checkpoints" / "0.pt").touch()
    assert [name for _, name in list_checkpoints([f"{tmp_path}/[1]", f"{tmp_path}/gone"])] == ["checkpoints/0.pt"]


@pytest.mark.parametrize("unreadable", ["attempt-1", "attempt-1/node-0/files", "attempt-1/node-0/files/checkpoints"])
def test_checkpoints_that_cannot_be_read_are_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unreadable: str
) -> None:
    """An attempt must not start from the beginning because a folder is stale for a moment."""
    checkpoints = tmp_path / "attempt-1" / "node-0" / "files" / "checkpoints"
    checkpoints.mkdir(parents=True)
    (checkpoints / "5.pt").touch()
    stale_path = str(tmp_path / unreadable)
    for name in ("listdir", "scandir", "lstat"):
        monkeypatch.setattr(os, name, partial(fail_at, stale_path, getattr(os, name)))
    with pytest.raises(FolderError, match=r"checkpoints of the previous attempt cannot be read \(Stale file handle\)"):
        list_checkpoints([f"{tmp_path}/attempt-1/node-*/files"])


def fail_at(stale_path: str, call: Callable[..., Any], path: Any, *args: Any, **options: Any) -> Any:
    """A call of `os` that fails below one path, as on a network filesystem whose server was restarted."""
    if f"{path}/".startswith(f"{stale_path}/"):
        raise OSError(errno.ESTALE, "Stale file handle", stale_path)
    return call(path, *args, **options)


def test_program_that_cannot_be_read_is_not_sent_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of the program that cannot be listed is an error here, and not a missing module on the hosts."""
    (tmp_path / "models").mkdir()
    monkeypatch.setattr(os, "scandir", partial(fail_at, str(tmp_path / "models"), os.scandir))
    with pytest.raises(OSError, match="Stale file handle"):
        list(walk_files(tmp_path))


def test_log_whose_copy_is_not_on_disk_keeps_its_original(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's folder is a leftover, and stays, if the copy of a log cannot be synced."""
    profile = load(write(nodes=2, options={"hosts": ["a", "b"]}))
    plan = command_plan_of(profile, tmp_path)
    process = plan.processes[0]
    Path(process.log).parent.mkdir(parents=True)
    Path(process.log).write_text("a line\n")
    watch = MagicMock()
    watch.return_value.__enter__.return_value.lost_logs.return_value = {}
    monkeypatch.setattr(staging, "ProcessWatch", watch)
    monkeypatch.setattr(staging, "_stage_out", lambda sites: {site.host: {} for site in sites})
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    (leftover,) = staging.stage_out_and_remove(plan, [process.host])
    assert "its copy is not on this machine's disk" in leftover


def test_link_to_a_local_file_is_not_sent(tmp_path: Path) -> None:
    """A link in a host's files that points elsewhere on this machine is not sent to the next host."""
    (tmp_path / "secret").write_text("")
    checkpoints = tmp_path / "attempt-1" / "node-0" / "files" / "checkpoints"
    checkpoints.mkdir(parents=True)
    (checkpoints / "5.pt").touch()
    (checkpoints / "last").symlink_to("5.pt")
    (checkpoints / "leak").symlink_to(tmp_path / "secret")
    assert sorted(name for _, name in list_checkpoints([f"{tmp_path}/attempt-1/node-*/files"])) == [
        "checkpoints/5.pt",
        "checkpoints/last",
    ]


def test_only_program_files_are_sent(tmp_path: Path) -> None:
    """A folder is sent without its git history, virtual environment and dangling links."""
    for name in (".git/config", ".venv/bin/python", "models/net.py", "train.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "gone").symlink_to("nowhere")
    assert sorted(name for _, name in walk_files(tmp_path)) == ["models/net.py", "train.py"]


def test_link_to_a_folder_of_the_program_is_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A link to a folder is sent as its files, unless it is a loop or, with a warning, leads out of the program."""
    program = tmp_path / "program"
    (program / "models").mkdir(parents=True)
    (program / "models" / "net.py").touch()
    (program / "nets").symlink_to("models")
    (program / "models" / "loop").symlink_to(program)
    for name, other_name in (("a", "b"), ("b", "a")):
        (program / name).mkdir()
        (program / name / "other").symlink_to(program / other_name)
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "0.bin").touch()
    (program / "data").symlink_to(tmp_path / "dataset")
    assert sorted(name for _, name in walk_files(program)) == ["models/net.py", "nets/net.py"]
    assert caplog.text.count("data is not copied: it is a link to") == 1


def write_ssh(tmp_path: Path, before: str = "") -> None:
    """An ssh whose host is this machine, with its home in `tmp_path`. `before`: shell code before each command."""
    ssh = tmp_path / "ssh"
    ssh.write_text(f'#!/bin/sh\ncd {tmp_path}; for command; do :; done\n{before}\nexec sh -c "$command"\n')
    ssh.chmod(0o755)
    os.environ["TORCHYARD_SSH"] = str(ssh)


def test_host_gets_every_script(tmp_path: Path) -> None:
    """All scripts of torchyard/host are copied to a host, so that a plan may start any of them there."""
    write_ssh(tmp_path)
    site = Site(host="gpu1", folder="runs/a-1", python=sys.executable, work=None, files=str(tmp_path / "files"))
    stage_in([site])
    scripts = tmp_path / "runs" / "a-1" / "supervisor" / "torchyard" / "host"
    sent_names = sorted(name for _, name in walk_files(scripts))
    assert sent_names == sorted(name for _, name in walk_files(SCRIPTS_FOLDER))


def test_file_that_appears_after_the_copy_is_kept(write: Write, tmp_path: Path) -> None:
    """A host removes only what was copied; what is left is copied and removed by the next teardown."""
    write_ssh(tmp_path)
    options = {"hosts": ["gpu1"], "supervisor_python": sys.executable}
    plan = command_plan_of(load(write(options=options)), tmp_path / "run")
    (site,) = plan.sites
    stage_in(plan.sites)
    checkpoints = tmp_path / site.checkpoints
    (checkpoints / "5.pt").touch()
    write_ssh(tmp_path, f'case "$command" in *" clear "*) touch {checkpoints}/6.pt;; esac')
    (leftover,) = remove_incomplete_folders(plan, {"gpu1"})
    assert leftover.endswith("1 files are not copied, such as checkpoints/6.pt")
    write_ssh(tmp_path)
    assert remove_incomplete_folders(plan, {"gpu1"}) == []
    assert not (tmp_path / site.folder).exists()
    fetched_names = [path.name for path in Path(site.files, "checkpoints").iterdir()]
    assert sorted(fetched_names) == ["5.pt", "6.pt"]
