"""A tar that a host sends, unpacked: nothing in it is trusted, and nothing of it gets outside of its folder."""

import contextlib
import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import IO, Self

from torchyard.common.private_files import make_private_folder

END_MEMBER = "whole"  # the last member: a stream that breaks between two files looks like its end
_MAX_MEMBERS = 1_000_000
_MAX_NAME_BYTES = 1024
_MAX_HEADER_BYTES = 64 * 2**10  # of a name or of extended attributes, which are read as a whole
_RESERVED_BYTES = 100 * 2**20  # of the disk, for everybody else
_HEADER_TYPES = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class _BoundedMember(tarfile.TarInfo):
    """One whose headers fit into the memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str | None, errors: str) -> Self:
        made = super().frombuf(buf, encoding or "utf-8", errors)
        if made.type == tarfile.GNUTYPE_SPARSE or (made.type in _HEADER_TYPES and made.size > _MAX_HEADER_BYTES):
            raise OSError(f"what came is no tar of ours: a header of {made.size} bytes")
        return made


def unpack_archive(files: Path, there: IO[bytes], answer: IO[bytes]) -> bool:
    """Unpack a tar of another machine below `files`: nothing in it leads outside. Whole, or what was there stays."""
    there.close()
    part = files.with_name(f"{files.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        make_private_folder(part)
        _extract_members(answer, part)
        if any(part.iterdir()):
            _merge_folder(part, files)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return True


def _extract_members(stream: IO[bytes], folder: Path) -> None:
    """Fill an empty folder. OSError where the tar is not whole, or too large; what leads outside is left out.

    Links come last: while files are written there is none that could lead one outside.
    """
    last, links = "", []
    try:
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_BoundedMember) as archive:
            for number, member in enumerate(archive):
                archive.members = []  # type: ignore[attr-defined]  # else it keeps every name in memory
                last = member.name
                _check_limits(member, number, folder)
                if member.issym():
                    links.append((member.name, member.linkname))
                elif last != END_MEMBER and _is_wanted(member, folder):
                    with contextlib.suppress(tarfile.FilterError):
                        archive.extract(member, folder, filter="data")
    except tarfile.TarError as error:
        raise OSError(f"what came is torn: {error}") from error
    if last != END_MEMBER:
        raise OSError("what came is torn")
    for name, target in links:
        _make_link(folder, name.lstrip("/"), target)


def _check_limits(member: tarfile.TarInfo, number: int, folder: Path) -> None:
    """OSError where a tar would take more than this machine can give."""
    if number > _MAX_MEMBERS:
        raise OSError(f"it holds more than {_MAX_MEMBERS} files")
    if len(os.fsencode(member.name)) > _MAX_NAME_BYTES:
        raise OSError(f"it holds a name of more than {_MAX_NAME_BYTES} bytes: {member.name[:60]}...")
    free = shutil.disk_usage(folder).free
    if member.isreg() and member.size > max(0, free - _RESERVED_BYTES):
        raise OSError(f"no room here for {member.name}: {member.size >> 20} MiB, and {free >> 20} MiB are free")


def _is_wanted(member: tarfile.TarInfo, folder: Path) -> bool:
    """A file, a folder, or a second name of a file that has come already."""
    return member.isreg() or member.isdir() or (member.islnk() and os.path.isfile(folder / member.linkname))


def _make_link(folder: Path, name: str, target: str) -> None:
    """Make a link that stays inside, whatever others there are or will be: it goes up, not too far, and then down."""
    place, steps = PurePosixPath(name).parts, PurePosixPath(target).parts
    up = next((number for number, step in enumerate(steps) if step != ".."), len(steps))
    inside = up < len(place) and ".." not in (*place, *steps[up:]) and not target.startswith("/")
    at = folder.joinpath(*place)
    on_the_way = (folder.joinpath(*place[:depth]) for depth in range(1, len(place)))
    if inside and not os.path.lexists(at) and not any(each.is_symlink() or each.is_file() for each in on_the_way):
        make_private_folder(at.parent)
        at.symlink_to(target)


def _merge_folder(part: Path, files: Path) -> None:
    """Move what has come over what came before. A link that stands in the way goes: none is followed."""
    if files.is_symlink() or not files.is_dir():
        files.unlink(missing_ok=True)
        make_private_folder(files)
    for entry in list(os.scandir(part)):
        there = files / entry.name
        if entry.is_dir(follow_symlinks=False):
            _merge_folder(Path(entry.path), there)
            continue
        if there.is_dir() and not there.is_symlink():
            shutil.rmtree(there)
        os.replace(entry.path, there)
