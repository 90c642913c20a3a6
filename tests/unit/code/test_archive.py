"""The archive of a folder with code: packed, stored on this machine, and linked into a run's folder."""

import os
import shutil
import tarfile
from pathlib import Path

import pytest

from torchyard.code import archive
from torchyard.code.archive import (
    PackedFolder,
    code_folder,
    find_secrets,
    keep_archive,
    pack_folder,
    read_archive,
    store_archive,
    unpack_here,
)
from torchyard.model.errors import CodeError, FolderError
from torchyard.model.plan import StagedCode


def pack(folder: Path, text: str = "print(1)") -> PackedFolder:
    """A folder with a program and a link to it, packed."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    (folder / "bin" / "train.sh").write_text(text)
    (folder / "bin" / "train.sh").chmod(0o755)
    (folder / "link").unlink(missing_ok=True)
    (folder / "link").symlink_to("bin/train.sh")
    return pack_folder(folder, ["bin/train.sh", "link"])


@pytest.fixture
def code(tmp_path: Path) -> StagedCode:
    """The code of a run, which is stored on this machine."""
    packed = pack(tmp_path / "mine")
    store_archive(packed)
    return StagedCode(archive=packed.archive, path=str(tmp_path / "runs" / "a-1" / "code.tar.gz"))


def test_equal_files_make_equal_archives(tmp_path: Path) -> None:
    """The archive does not depend on times, owners and the folder, but on each byte and on the right to execute."""
    first = pack(tmp_path / "a")
    os.utime(tmp_path / "a" / "bin" / "train.sh", (0, 0))
    assert pack(tmp_path / "b").content == pack(tmp_path / "a").content == first.content
    assert str(first.archive).startswith("2 files, 1 KB, digest ")
    assert pack(tmp_path / "a", "print(2)").archive.digest != first.archive.digest
    (tmp_path / "b" / "bin" / "train.sh").chmod(0o644)
    assert pack_folder(tmp_path / "b", ["bin/train.sh", "link"]).archive.digest != first.archive.digest


def test_secrets_are_named_in_one_sentence(tmp_path: Path) -> None:
    """Each file with a secret is named, with its line, and with what to do."""
    (tmp_path / ".env").write_text("A=1")
    (tmp_path / "a.py").write_text("\n'ghp_" + "a1" * 18 + "'")
    message = find_secrets(tmp_path, [".env", "a.py"])
    assert message
    assert ": .env (by its name), a.py:2. Exclude the files (code.exclude, or .gitignore)" in message
    (tmp_path / "a.py").write_text("")
    assert find_secrets(tmp_path, ["a.py"]) is None


def test_oldest_archives_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the archives of the last loads are stored, and loading one again makes it a new one."""
    monkeypatch.setattr(archive, "_MAX_ARCHIVES", 2)
    packed = [pack(tmp_path / "mine", str(number)) for number in range(3)]
    for number, one in enumerate(packed[:2]):
        store_archive(one)
        os.utime(code_folder() / f"{one.archive.digest}.tar.gz", (number, number))
    store_archive(packed[0])
    store_archive(packed[2])
    names = {path.name for path in code_folder().iterdir()}
    assert names == {f"{one.archive.digest}.tar.gz" for one in (packed[0], packed[2])}


@pytest.mark.parametrize("has_links", [True, False])
def test_run_keeps_its_archive(code: StagedCode, monkeypatch: pytest.MonkeyPatch, has_links: bool) -> None:
    """A run has its archive although a later load removes it, also on a file system without hard links."""

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    keep_archive(code)
    shutil.rmtree(code_folder())
    keep_archive(code)
    with tarfile.open(code.path) as tar:
        assert tar.getnames() == ["bin/train.sh", "link"]
    assert len(read_archive(code)) == code.archive.packed_bytes


def test_archive_that_is_lost_or_changed_is_an_error(code: StagedCode) -> None:
    """A run whose archive is not on this machine, or was changed, is refused with what to do."""
    shutil.rmtree(code_folder())
    with pytest.raises(CodeError, match=r"does not exist any more \(2 files, 1 KB, .*\); start a new run"):
        keep_archive(code)
    with pytest.raises(CodeError, match="it does not exist on this machine; start a new run"):
        read_archive(code)
    Path(code.path).parent.mkdir(exist_ok=True)
    Path(code.path).write_bytes(b"other")
    for function in (read_archive, unpack_here):
        with pytest.raises(CodeError, match="it was changed; start a new run"):
            function(code)
    assert not Path(code.folder).exists()


def test_run_folder_that_disappears_is_not_lost_code(code: StagedCode, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the run's folder is removed meanwhile, the error names it, and not the archive."""

    def disappear(_: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(archive, "make_private_folder", disappear)
    with pytest.raises(FolderError, match=r"\.tar\.gz: No such file or directory"):
        keep_archive(code)


def test_full_disk_is_a_local_error(code: StagedCode, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a full disk prevents is not taken for lost code, leaves nothing half done, and is repeated by the step."""

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    keep_archive(code)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        with pytest.raises(FolderError, match="the code cannot be unpacked: No space left on device"):
            unpack_here(code)
    assert not Path(f"{code.folder}.part").exists()
    unpack_here(code)
    assert Path(code.folder).exists()


def test_unpacked_folder_is_on_disk_before_it_has_its_name(code: StagedCode, synced_paths: list[str]) -> None:
    """A power cut never leaves a folder that looks complete: each file is synced first, and each folder."""
    keep_archive(code)
    synced_paths.clear()
    unpack_here(code)
    part = f"{code.folder}.part"
    assert synced_paths == [f"{part}/bin/train.sh", part, f"{part}/bin", f"renamed {part}"]


def test_unpacked_part_is_replaced(code: StagedCode) -> None:
    """What a process that died in the middle has unpacked is neither used nor kept."""
    keep_archive(code)
    part = Path(f"{code.folder}.part")
    part.mkdir()
    (part / "half.py").touch()
    unpack_here(code)
    assert sorted(path.name for path in Path(code.folder).iterdir()) == ["bin", "link"]
    assert not part.exists()


def test_attempts_share_the_unpacked_folder(code: StagedCode) -> None:
    """A later attempt finds the folder as an earlier one left it."""
    keep_archive(code)
    unpack_here(code)
    Path(code.folder, "out").write_text("saved")
    unpack_here(code)
    assert Path(code.folder, "out").read_text() == "saved"
    assert Path(code.folder, "link").read_text() == "print(1)"
    assert os.access(Path(code.folder, "bin", "train.sh"), os.X_OK)
