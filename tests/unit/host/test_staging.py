"""The run's folder on a host behind ssh: created, read and removed by the script that is sent there."""

import errno
import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.inputs.archives import build_member, build_tar
from torchyard.common.json_text import parse_json
from torchyard.host import staging
from torchyard.host.staging import OtherOwnerError, OwnerFile, Ownership
from torchyard.machines.host_command import SCRIPTS_FOLDER

SCRIPT_PATH = str(SCRIPTS_FOLDER / "staging.py")
NAME = "here:/runs/a"
OWNER = json.dumps({"owner": NAME, "port_try": 2, "code": None})


def run_script(verb: str, folder: Path, *args: str, stream: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    argv = [sys.executable, SCRIPT_PATH, verb, str(folder), *args]
    return subprocess.run(argv, input=stream, capture_output=True, check=False)


def query_script(verb: str, folder: Path) -> Any:
    return json.loads(run_script(verb, folder).stdout)


def test_incomplete_tar_creates_no_folder(tmp_path: Path) -> None:
    """A run's folder on a host is created completely or not at all."""
    stream = build_tar(build_member("work/x.py"), with_regular_file=False).read()
    argv = [sys.executable, SCRIPT_PATH, "place", str(tmp_path / "site-1"), OWNER]
    completed = subprocess.run(argv, input=stream, capture_output=True, check=False)
    assert (completed.returncode, list(tmp_path.iterdir())) == (1, [])


def test_files_that_the_job_left_are_fetched(tmp_path: Path) -> None:
    """Checkpoints and new or changed files are sent back, but not the files that were sent and stayed as they were."""
    folder = tmp_path / "sample-1"
    run_script(
        "place", folder, OWNER, stream=build_tar(build_member("work/same.py"), build_member("work/changed.py")).read()
    )
    (folder / "work" / "changed.py").write_text("new")
    (folder / "work" / "new.txt").touch()
    (folder / "checkpoints" / "5.pt").touch()
    with tarfile.open(fileobj=io.BytesIO(run_script("bring", folder).stdout)) as archive:
        assert sorted(archive.getnames()) == ["checkpoints/5.pt", "whole", "work/changed.py", "work/new.txt"]


def place_code(folder: Path, content: bytes, digest: str) -> Any:
    """Stage in a folder as a launcher does; return whether the host wanted the archive of the code."""
    request = json.dumps({"owner": "here:/runs/a", "port_try": 0, "code": digest})
    argv = [sys.executable, SCRIPT_PATH, "place", str(folder), request]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        is_wanted = json.loads(process.stdout.readline())["code_wanted"]
        with tarfile.open(fileobj=process.stdin, mode="w|") as archive:
            archive.add(SCRIPTS_FOLDER, "supervisor/torchyard/host")
            if is_wanted:
                member = build_member("code.tar.gz")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            archive.addfile(build_member("whole"))
        process.stdin.close()
        process.stdout.read()
    assert process.returncode == 0 or not folder.exists()
    return is_wanted


def test_code_is_sent_once_for_several_attempts(tmp_path: Path) -> None:
    """A host keeps the archive of code by its digest, and each attempt has its own unpacked copy."""
    content = gzip.compress(build_tar(build_member("a.py"), with_regular_file=False).read())
    digest = hashlib.sha256(content).hexdigest()
    assert [place_code(tmp_path / f"a-{number}", content, digest) for number in (1, 2)] == [True, False]
    (tmp_path / "a-1" / "work" / "a.py").write_text("changed")
    assert (tmp_path / "a-2" / "work" / "a.py").read_text() != "changed"
    assert [path.name for path in (tmp_path / "code").iterdir()] == [f"{digest}.tar.gz"]
    assert not (tmp_path / "a-2" / "code.tar.gz").exists()


def test_damaged_archive_is_sent_again(tmp_path: Path) -> None:
    """An archive that does not have its digest is unpacked nowhere, and removed, so that the next attempt sends it."""
    content = gzip.compress(build_tar(build_member("a.py"), with_regular_file=False).read())
    digest = hashlib.sha256(content).hexdigest()
    place_code(tmp_path / "a-1", content, digest)
    (tmp_path / "code" / f"{digest}.tar.gz").write_bytes(b"damaged")
    assert [place_code(tmp_path / f"a-{number}", content, digest) for number in (2, 3)] == [False, True]
    assert not (tmp_path / "a-2").exists()
    assert (tmp_path / "a-3" / "work" / "a.py").exists()


def stage_in_here(folder: Path, stream: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create a folder from a tar in this process."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stream)))
    staging.VERBS["place"](str(folder), OWNER)


def test_folder_is_on_disk_before_it_has_its_name(
    tmp_path: Path, synced_paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut never leaves a folder that looks complete: its files are synced first. Pipes are not opened."""
    stream = build_tar(build_member("work/x.py"), build_member("work/pipe", tarfile.FIFOTYPE)).read()
    stage_in_here(tmp_path / "a-1", stream, monkeypatch)
    assert synced_paths[-1].startswith(f"renamed {tmp_path}/a-1.part-")
    part = synced_paths[-1].removeprefix("renamed ")
    files = {path for path in (tmp_path / "a-1").rglob("*") if path.is_file()}
    assert {str(path.relative_to(tmp_path / "a-1")) for path in files} >= {"work/x.py", "sent.json"}
    names = {path.relative_to(tmp_path / "a-1") for path in files} | {Path("work"), Path()}
    assert {str(Path(part, name)) for name in names} <= set(synced_paths[:-1])


def test_partial_folder_of_another_host_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hosts that share a disk may have the same process numbers: each unpacks into its own folder."""
    other_part = tmp_path / f"a-1.part-{os.getpid()}"
    other_part.mkdir()
    stage_in_here(tmp_path / "a-1", build_tar(build_member("work/x.py")).read(), monkeypatch)
    assert (list(other_part.iterdir()), (tmp_path / "a-1" / "work" / "x.py").exists()) == ([], True)


def test_existing_folder_needs_no_second_tar(tmp_path: Path) -> None:
    """A second process of the same run sends no tar, and the host names no other owner."""
    run_script("place", tmp_path / "sample-1", OWNER, stream=build_tar(build_member("work/x.py")).read())
    lines = run_script("place", tmp_path / "sample-1", OWNER).stdout.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"wanted": False, "other_owner": ""},
        {"created": False, "other_owner": ""},
    ]


def test_attempts_of_a_run_are_listed(tmp_path: Path) -> None:
    """Each attempt with a folder here is reported with its port; partial folders and those of another run are not."""
    run_script("place", tmp_path / "sample-1", OWNER, stream=build_tar(build_member("work/x.py")).read())
    for name in ("sample-3", "sample-4.part-77", "other-5"):
        (tmp_path / name).mkdir()
    assert sorted(query_script("attempts", tmp_path / "sample-1")["attempts"]) == [[1, 2], [3, 0]]


def test_removal_includes_partial_folders(tmp_path: Path) -> None:
    """The folder, what a broken transfer left beside it, and the empty folder above are removed."""
    folder = tmp_path / ".torchyard" / "sample-1"
    (folder / "work").mkdir(parents=True)
    folder.with_name("sample-1.part-77").mkdir()
    assert query_script("clear", folder) == {"left": []}
    assert list(tmp_path.iterdir()) == []


# --- a failed read does not prove absence


def place_checkpoint(tmp_path: Path) -> Path:
    """A run's folder with a checkpoint; returns it."""
    folder = tmp_path / "sample-1"
    run_script("place", folder, OWNER, stream=build_tar(build_member("work/same.py")).read())
    (folder / "checkpoints" / "step-100").mkdir()
    (folder / "checkpoints" / "step-100" / "model.pt").write_text("step 100")
    return folder


def fail_listing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let each listing of a folder with this name fail, as a share does that is away for a moment."""
    for function_name in ("scandir", "listdir"):
        list_folder = getattr(os, function_name)

        def fail(path: str, list_folder: Any = list_folder) -> Any:
            if os.path.basename(path) == name:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
            return list_folder(path)

        monkeypatch.setattr(os, function_name, fail)


@pytest.mark.parametrize("name", ["step-100", "checkpoints", "work"])
def test_folder_that_cannot_be_listed_is_neither_copied_nor_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """If a folder cannot be listed, the tar has no end, and nothing is removed."""
    folder = place_checkpoint(tmp_path)
    stdout = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(sys, "stdin", io.StringIO("{}"))
    fail_listing(monkeypatch, name)
    with pytest.raises(OSError, match="Stale file handle"):
        staging._stage_out_folder(str(folder))
    assert b"whole" not in stdout.buffer.getvalue()
    with pytest.raises(OSError, match="Stale file handle"):
        staging.VERBS["clear"](str(folder), NAME)
    assert (folder / "checkpoints" / "step-100" / "model.pt").exists()


def read_copied(folder: Path) -> bytes:
    """The list of the files that are copied, as `bring` prints it."""
    with tarfile.open(fileobj=io.BytesIO(run_script("bring", folder).stdout)) as archive:
        content = archive.extractfile("whole")
        assert content
        return content.read()


def test_folder_is_removed_with_the_files_that_are_copied(tmp_path: Path) -> None:
    """A folder is removed once each of its files is copied as it is now, or was staged in."""
    folder = place_checkpoint(tmp_path)
    os.mkfifo(folder / "work" / "pipe")
    copied = read_copied(folder)
    (folder / "checkpoints" / "step-100" / "model.pt").write_text("step 1000")
    refused = json.loads(run_script("clear", folder, NAME, stream=copied).stdout)
    leftover = f"folder {folder}: 1 files are not copied, such as checkpoints/step-100/model.pt"
    assert (refused, folder.exists()) == ({"left": [leftover]}, True)
    copied = read_copied(folder)
    assert json.loads(run_script("clear", folder, NAME, stream=copied).stdout) == {"left": []}
    assert not folder.exists()


def test_file_with_any_name_is_copied(tmp_path: Path) -> None:
    """A name that is not valid text is listed as it is, so that its file can be removed."""
    folder = place_checkpoint(tmp_path)
    Path(os.fsdecode(os.fsencode(folder) + b"/work/\xff")).touch()
    copied = json.dumps(parse_json(read_copied(folder))).encode()
    assert json.loads(run_script("clear", folder, NAME, stream=copied).stdout) == {"left": []}


def test_attempts_that_cannot_be_listed_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that cannot be listed may have attempts; one that does not exist has none."""
    assert staging.VERBS["attempts"](str(tmp_path / "none" / "sample-1")) == {"attempts": []}
    fail_listing(monkeypatch, tmp_path.name)
    with pytest.raises(OSError, match="Stale file handle"):
        staging.VERBS["attempts"](str(tmp_path / "sample-1"))


def test_owner_that_cannot_be_read_may_be_alive(tmp_path: Path) -> None:
    """While the owner of another attempt cannot be read, no folder is created."""
    (tmp_path / "sample-1" / "owner").mkdir(parents=True)
    completed = run_script("place", tmp_path / "sample-2", OWNER)
    assert completed.stderr.startswith(b"Is a directory: ")
    assert not (tmp_path / "sample-2").exists()


def test_folder_that_is_back_at_the_second_look_is_not_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script is absent only if it is missing at two looks seconds apart."""
    script = tmp_path / "sample-1" / "supervisor.py"
    monkeypatch.setattr(staging, "time", SimpleNamespace(sleep=lambda _: None))
    assert staging.VERBS["look"](str(script.parent), str(script)) == {"site": False, "is_running": False}
    script.parent.mkdir()
    monkeypatch.setattr(staging, "time", SimpleNamespace(sleep=lambda _: script.touch()))
    with pytest.raises(OSError, match="could not be read for a moment"):
        staging.VERBS["look"](str(script.parent), str(script))


# --- the owner


class Clock:
    """A monotonic clock that the test sets."""

    now_s = 100.0


def test_owner_is_replaced_once_it_is_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second owner is refused until the first one has sent no heartbeat for a minute, and none while it looked."""
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now_s)
    path = tmp_path / "owner"
    first, second = OwnerFile(str(path)), OwnerFile(str(path))
    assert (first.record_heartbeat("here:/a"), second.record_heartbeat("there:/a")) == ("", "here:/a")
    os.utime(path, (time.time() - 61,) * 2)
    assert (second.record_heartbeat("there:/a"), path.read_text().strip()) == ("", "here:/a")
    clock.now_s += 6.0
    assert (second.record_heartbeat("there:/a"), path.read_text().strip()) == ("", "there:/a")
    assert first.record_heartbeat("here:/a") == "there:/a"


def test_clock_that_is_ahead_replaces_no_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose clock is a day ahead sees old heartbeats, and that they keep coming."""
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now_s)
    path = tmp_path / "owner"
    first, second = OwnerFile(str(path)), OwnerFile(str(path))
    first.record_heartbeat("here:/a")
    responses = []
    for number in range(5):
        os.utime(path, (time.time() - 86400 + 2 * number,) * 2)
        responses.append(second.record_heartbeat("there:/a"))
        clock.now_s += 2.0
    assert responses == ["", *["here:/a"] * 4]
    assert path.read_text().strip() == "here:/a"


def test_staging_waits_for_a_heartbeat_that_looks_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second machine whose clock is ahead does not take a run over whose owner still sends heartbeats."""
    path = tmp_path / "sample-1" / "owner"
    path.parent.mkdir()
    OwnerFile(str(path)).record_heartbeat("here:/a")
    os.utime(path, (time.time() - 86400,) * 2)

    def send_heartbeat(_: float) -> None:
        os.utime(path, (time.time() - 86398,) * 2)

    clock = SimpleNamespace(sleep=send_heartbeat, monotonic=time.monotonic, time=time.time)
    monkeypatch.setattr(staging, "time", clock)
    assert staging._find_other_owner(str(tmp_path / "sample-1"), "there:/a") == "here:/a"


def test_ownership_is_lost_to_another_launcher(tmp_path: Path) -> None:
    """Once another launcher has taken the run over, the next check before a signal or a removal fails."""
    folder = tmp_path / "sample-1"
    folder.mkdir()
    ownership = Ownership(str(folder), NAME)
    ownership.acquire()
    ownership.check()
    (tmp_path / "sample-2").mkdir()
    OwnerFile(str(tmp_path / "sample-2" / "owner")).record_heartbeat("there:/a")
    with pytest.raises(OtherOwnerError, match="there:/a"):
        ownership.check()


@pytest.mark.parametrize("args", [("clear", "there:/a"), ("end", "there:/a", "sample/1/", "5"), ("owner", "there:/a")])
def test_living_owner_keeps_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]) -> None:
    """Another launcher can neither remove a folder nor end processes while the owner sends heartbeats."""
    path = tmp_path / "sample-1" / "owner"
    path.parent.mkdir()
    OwnerFile(str(path)).record_heartbeat(NAME)

    def send_heartbeat(_: float) -> None:
        os.utime(path, (time.time() + 1,) * 2)

    clock = SimpleNamespace(sleep=send_heartbeat, monotonic=time.monotonic, time=time.time)
    monkeypatch.setattr(staging, "time", clock)
    monkeypatch.setattr(sys, "stdin", io.StringIO("{}"))
    verb, *verb_args = args
    if verb == "owner":
        assert staging.VERBS[verb](str(path.parent), *verb_args) == {"other_owner": NAME}
        return
    with pytest.raises(OtherOwnerError, match=NAME):
        staging.VERBS[verb](str(path.parent), *verb_args)
    assert path.exists()
