"""Tars from a host: incomplete ones, and those that lead outside the folder."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from tests.archives import build_member, build_tar
from torchyard.machines.archive import unpack_archive


@pytest.mark.parametrize(
    "unsafe",
    [
        build_member("../outside"),
        build_member("link", tarfile.SYMTYPE, "/etc/passwd"),
        build_member("link", tarfile.SYMTYPE, "../../outside"),
        build_member("./link", tarfile.SYMTYPE, "../outside"),
        build_member("link", tarfile.SYMTYPE, "a/b/../../.."),
        build_member("hard", tarfile.LNKTYPE, "../../../seed"),
        build_member("pipe", tarfile.FIFOTYPE),
        build_member("disk", tarfile.BLKTYPE),
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


def build_oversized_member(name: str) -> tarfile.TarInfo:
    big = build_member(name)
    big.size = 1 << 60
    return big


@pytest.mark.parametrize(("oversized", "message"), [
    (build_oversized_member("big"), "no room here for big: "),
    (build_member("n" * 2000), "a name of more than 1024 bytes: nnn"),
    (build_member("n" * 100_000), "not a tar of ours: a header of 100"),
], ids=["size", "name", "header"])  # fmt: skip
def test_tar_that_is_too_large_is_refused(tmp_path: Path, oversized: tarfile.TarInfo, message: str) -> None:
    """A tar that would fill the disk or the memory is refused, and earlier files stay."""
    unpack_archive(tmp_path / "files", io.BytesIO(), build_tar(build_member("first")))
    with pytest.raises(OSError, match=message):
        unpack_archive(tmp_path / "files", io.BytesIO(), build_tar(oversized))
    assert [path.name for path in tmp_path.rglob("*")] == ["files", "first"]


def test_absolute_name_stays_inside(tmp_path: Path) -> None:
    """An absolute name is unpacked inside the folder."""
    unpack_archive(tmp_path / "files", io.BytesIO(), build_tar(build_member("/etc/torchyard")))
    assert (tmp_path / "files" / "etc" / "torchyard").exists()


def test_incomplete_tar_changes_nothing(tmp_path: Path) -> None:
    """An incomplete tar is not unpacked, and earlier files stay."""
    unpack_archive(tmp_path / "files", io.BytesIO(), build_tar(build_member("first")))
    with pytest.raises(OSError, match="incomplete"):
        unpack_archive(tmp_path / "files", io.BytesIO(), build_tar(build_member("second"), with_regular_file=False))
    assert [path.name for path in tmp_path.rglob("*")] == ["files", "first"]
