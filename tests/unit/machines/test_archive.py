"""Tars from a host: incomplete ones, and those that lead outside the folder."""

import errno
import io
import os
import stat
import tarfile
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.inputs.archives import build_member, build_tar
from torchyard.machines.archive import unpack_archive


@pytest.mark.parametrize(
    "unsafe",
    [
        build_member("../outside"),
        build_member("a/../../outside"),
        build_member("/../outside"),
        build_member("..", tarfile.DIRTYPE),
        build_member("."),
        build_member("link", tarfile.SYMTYPE, "/etc/passwd"),
        build_member("link", tarfile.SYMTYPE, "../../outside"),
        build_member("./link", tarfile.SYMTYPE, "../outside"),
        build_member("link", tarfile.SYMTYPE, "a/b/../../.."),
        build_member("hard", tarfile.LNKTYPE, "../../../seed"),
        build_member("hard", tarfile.LNKTYPE, "/etc/passwd"),
        build_member("hard", tarfile.LNKTYPE, "hard"),
        build_member("pipe", tarfile.FIFOTYPE),
        build_member("disk", tarfile.BLKTYPE),
        build_member("terminal", tarfile.CHRTYPE),
    ],
    ids=lambda unsafe: f"{unsafe.name}-{unsafe.linkname}",
)
def test_member_that_leads_outside_is_skipped(tmp_path: Path, unsafe: tarfile.TarInfo) -> None:
    """Nothing that a host sends is written outside the folder, and everything else is unpacked."""
    unpack_archive(tmp_path / "run" / "files", io.BytesIO(), build_tar(unsafe, build_member("good")))
    assert [path.name for path in tmp_path.rglob("*")] == ["run", "files", "good"]


def build_link_chain() -> list[tarfile.TarInfo]:
    """Links that each stay inside but together lead six folders up."""
    deep = "/".join("abcdef")
    members = [build_member(deep, tarfile.DIRTYPE), build_member("down", tarfile.SYMTYPE, deep)]
    for index in range(6):
        members.append(build_member(f"{'down' if not index else f'up{index - 1}'}/up{index}", tarfile.SYMTYPE, ".."))
    return [*members, build_member("up", tarfile.SYMTYPE, "down/../../../../../../.."), build_member("up/outside")]


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    "unsafe",
    [
        build_link_chain(),
        [build_member("a", tarfile.SYMTYPE, "p/q/../.."), *(build_member(name, tarfile.SYMTYPE, ".") for name in "pq")],
        [build_member("p", tarfile.SYMTYPE, "."), build_member("a", tarfile.SYMTYPE, "p/p/..")],
    ],
    ids=["down-and-up", "before-its-parts", "after-its-parts"],
)
def test_no_chain_of_links_leads_outside(tmp_path: Path, unsafe: list[tarfile.TarInfo], times: int) -> None:
    """No combination of links, even over two tars, leads outside the folder."""
    files = tmp_path / "1" / "2" / "3" / "4" / "5" / "6" / "files"
    for _ in range(times):
        unpack_archive(files, io.BytesIO(), build_tar(*unsafe))
    links = [path for path in files.rglob("*") if path.is_symlink()]
    assert [path for path in links if not path.resolve().is_relative_to(files)] == []
    assert [path for path in tmp_path.rglob("outside") if not path.is_relative_to(files)] == []


@pytest.mark.parametrize(
    "new",
    [build_member("link"), build_member("link/new"), build_member("link", tarfile.SYMTYPE, "good")],
    ids=["file", "folder", "link"],
)
def test_link_of_an_earlier_tar_is_not_followed(tmp_path: Path, new: tarfile.TarInfo) -> None:
    """A tar's member replaces what has its name, so that nothing is written through a link."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "link").symlink_to(tmp_path / "outside")
    unpack_archive(tmp_path / "files", io.BytesIO(), build_tar(new, build_member("good")))
    assert list((tmp_path / "outside").iterdir()) == []
    assert not (tmp_path / "files" / "link").resolve().is_relative_to(tmp_path / "outside")


def test_links_inside_are_kept(tmp_path: Path) -> None:
    """A symbolic link inside the folder, such as one to the last checkpoint, and a hard link are kept."""
    hard = build_member("checkpoints/best", tarfile.LNKTYPE, "checkpoints/5.pt")
    soft = build_member("checkpoints/last", tarfile.SYMTYPE, "../checkpoints/5.pt")
    for _ in range(2):
        unpack_archive(tmp_path / "files", io.BytesIO(), build_tar(build_member("checkpoints/5.pt"), hard, soft))
    checkpoints = tmp_path / "files" / "checkpoints"
    assert os.readlink(checkpoints / "last") == "../checkpoints/5.pt"
    assert (checkpoints / "best").samefile(checkpoints / "last")


def build_oversized_member(name: str, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    big = build_member(name, kind)
    big.size = 1 << 60
    return big


@pytest.mark.parametrize(("oversized", "message"), [
    (build_oversized_member("big"), "no room here for big: "),
    (build_oversized_member("big", b"Z"), "no room here for big: "),
    (build_member("n" * 2000), "a name of more than 1024 bytes: nnn"),
    (build_member("n" * 100_000), "not a tar of ours: a header of 100"),
], ids=["size", "unknown-kind", "name", "header"])  # fmt: skip
def test_tar_that_is_too_large_is_refused(tmp_path: Path, oversized: tarfile.TarInfo, message: str) -> None:
    """A tar that would fill the disk or the memory is refused, and earlier files stay."""
    unpack_archive(tmp_path / "files", io.BytesIO(), build_tar(build_member("first")))
    with pytest.raises(OSError, match=message):
        unpack_archive(tmp_path / "files", io.BytesIO(), build_tar(oversized))
    assert [path.name for path in tmp_path.rglob("*")] == ["files", "first"]


def build_headers(kind: bytes, content: bytes, count: int) -> io.BytesIO:
    """A tar of one file after `count` headers, each of which has the same content."""
    header = tarfile.TarInfo("header")
    header.type = kind
    header.size = len(content)
    block = header.tobuf(tarfile.USTAR_FORMAT) + content.ljust(tarfile.BLOCKSIZE, b"\0")
    return io.BytesIO(block * count + build_tar().getvalue())


@pytest.mark.parametrize(
    "tar",
    [
        build_headers(tarfile.GNUTYPE_LONGNAME, b"name\0", 2000),
        build_headers(tarfile.XHDTYPE, b"13 path=name\n", 2000),
        build_headers(tarfile.XHDTYPE, b"99999999999999999999 path=name\n", 1),
    ],
    ids=["names", "attributes", "length"],
)
def test_tar_whose_headers_cannot_be_read_is_refused(tmp_path: Path, tar: io.BytesIO) -> None:
    """Headers without end, or one with a length that no tar has, are an error of the tar and not of the launcher."""
    with pytest.raises(OSError, match="not a tar of ours: its headers cannot be read"):
        unpack_archive(tmp_path / "files", io.BytesIO(), tar)


def test_absolute_name_stays_inside(tmp_path: Path) -> None:
    """An absolute name is unpacked inside the folder."""
    unpack_archive(tmp_path / "files", io.BytesIO(), build_tar(build_member("/etc/torchyard")))
    assert (tmp_path / "files" / "etc" / "torchyard").exists()


@pytest.mark.parametrize(
    ("sent_mode", "mode"),
    [(0o7777, 0o755), (0o4644, 0o644), (0o666, 0o644), (0o711, 0o711), (0o055, 0o644), (0, 0o600)],
    ids=oct,
)
def test_mode_is_masked(tmp_path: Path, sent_mode: int, mode: int) -> None:
    """A file has no special mode bits, is not writable by others, and can be read and written by its owner."""
    member = build_member("file")
    member.mode = sent_mode
    unpack_archive(tmp_path / "files", io.BytesIO(), build_tar(member))
    assert stat.S_IMODE((tmp_path / "files" / "file").stat().st_mode) == mode


def test_content_and_time_are_kept(tmp_path: Path) -> None:
    """A file has the content, the size and the time of change that the host sent."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w|") as archive:
        member = build_member("deep/model.pt")
        member.size = 3_000_000
        member.mtime = 1_700_000_000
        archive.addfile(member, io.BytesIO(b"x" * 3_000_000))
        archive.addfile(build_member("whole"))
    unpack_archive(tmp_path / "files", io.BytesIO(), io.BytesIO(buffer.getvalue()))
    path = tmp_path / "files" / "deep" / "model.pt"
    assert path.read_bytes() == b"x" * 3_000_000
    assert path.stat().st_mtime == 1_700_000_000


def test_name_that_comes_twice_does_not_change_a_hard_link(tmp_path: Path) -> None:
    """A second file of the same name replaces the name, and not the content of the first one's hard link."""
    hard = build_member("link", tarfile.LNKTYPE, "file")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w|") as archive:
        archive.addfile(build_member("file"))
        archive.addfile(hard)
        archive.addfile(build_member("file", tarfile.LNKTYPE, "file"))  # to itself
        second = build_member("file")
        second.size = 6
        archive.addfile(second, io.BytesIO(b"second"))
        archive.addfile(build_member("whole"))
    unpack_archive(tmp_path / "files", io.BytesIO(), io.BytesIO(buffer.getvalue()))
    assert (tmp_path / "files" / "link").read_bytes() == b""
    assert (tmp_path / "files" / "file").read_bytes() == b"second"


@pytest.mark.parametrize(
    "headers", [{"mtime": "inf"}, {"mtime": "nan"}, {"path": "a\0b"}, {"linkpath": "a\0b"}], ids=str
)
def test_value_that_no_disk_can_store_is_ignored(tmp_path: Path, headers: dict[str, str]) -> None:
    """A time or a name that no disk can store does not prevent the other files from being unpacked."""
    member = build_member("hard", tarfile.LNKTYPE, "good") if "linkpath" in headers else build_member("odd")
    member.pax_headers = headers
    unpack_archive(tmp_path / "files", io.BytesIO(), build_tar(build_member("good"), member))
    assert (tmp_path / "files" / "good").exists()


def test_incomplete_tar_changes_nothing(tmp_path: Path) -> None:
    """An incomplete tar is not unpacked, and earlier files stay."""
    unpack_archive(tmp_path / "files", io.BytesIO(), build_tar(build_member("first")))
    with pytest.raises(OSError, match="incomplete"):
        unpack_archive(tmp_path / "files", io.BytesIO(), build_tar(build_member("second"), with_regular_file=False))
    assert [path.name for path in tmp_path.rglob("*")] == ["files", "first"]


def build_list(content: bytes) -> io.BytesIO:
    """A tar of one file, whose last member has this content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w|") as archive:
        archive.addfile(build_member("5.pt"))
        member = build_member("whole")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return io.BytesIO(buffer.getvalue())


def test_files_are_on_disk_before_the_host_may_remove_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file and the folder with its name are synced, and a disk that fails then leaves the originals."""
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    unpack_archive(tmp_path / "files", io.BytesIO(), build_tar(build_member("a/5.pt")))
    assert {str(tmp_path / name) for name in ("files.part/a/5.pt", "files/a", "files")} <= set(synced)
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    with pytest.raises(OSError, match="Input/output error"):
        unpack_archive(tmp_path / "files", io.BytesIO(), build_tar(build_member("a/6.pt")))
    assert os.listdir(tmp_path / "files" / "a") == ["5.pt"]


def test_list_of_the_copied_files_is_returned(tmp_path: Path) -> None:
    """The last member lists the files of the host that are copied."""
    assert unpack_archive(tmp_path / "files", io.BytesIO(), build_list(b'{"5.pt": [0, 7]}')) == {"5.pt": [0, 7]}


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff"])
def test_malformed_list_is_an_incomplete_tar(tmp_path: Path, content: bytes) -> None:
    """Without a valid list nothing counts as copied."""
    with pytest.raises(OSError, match="the list of its files is malformed"):
        unpack_archive(tmp_path / "files", io.BytesIO(), build_list(content))
    assert not (tmp_path / "files").exists()
