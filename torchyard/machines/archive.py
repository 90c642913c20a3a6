"""Unpacks a tar from a host: nothing in it is trusted, and nothing is written outside its folder."""

import contextlib
import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import IO, Self

from torchyard.common.private_files import make_private_folder

END_MEMBER = "whole"  # the last member: without it a stream that breaks between two files would look whole
_MAX_MEMBERS = 1_000_000
_MAX_NAME_BYTES = 1024
_MAX_HEADER_BYTES = 64 * 2**10  # of a name or of extended attributes, which are read into memory at once
_RESERVED_BYTES = 100 * 2**20  # of the disk, left free for others
_HEADER_TYPES = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class _BoundedMember(tarfile.TarInfo):
    """A member whose headers fit into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str | None, errors: str) -> Self:
        member = super().frombuf(buf, encoding or "utf-8", errors)
        if member.type == tarfile.GNUTYPE_SPARSE or (member.type in _HEADER_TYPES and member.size > _MAX_HEADER_BYTES):
            raise OSError(f"not a tar of ours: a header of {member.size} bytes")
        return member


def unpack_archive(files: Path, stdin: IO[bytes], stdout: IO[bytes]) -> bool:
    """Unpack a tar from another machine under `files`, whole or not at all; nothing in it leads outside."""
    stdin.close()
    temp_folder = files.with_name(f"{files.name}.part")
    shutil.rmtree(temp_folder, ignore_errors=True)
    try:
        make_private_folder(temp_folder)
        _extract_members(stdout, temp_folder)
        if any(temp_folder.iterdir()):
            _merge_folder(temp_folder, files)
    finally:
        shutil.rmtree(temp_folder, ignore_errors=True)
    return True


def _extract_members(stream: IO[bytes], folder: Path) -> None:
    """Unpack into an empty folder. OSError if the tar is incomplete or too large; what leads outside is skipped.

    Links are made last, so that no file can be written through one.
    """
    last_name, links = "", []
    try:
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_BoundedMember) as archive:
            for number, member in enumerate(archive):
                archive.members = []  # type: ignore[attr-defined]  # else it keeps every name in memory
                last_name = member.name
                _check_limits(member, number, folder)
                if member.issym():
                    links.append((member.name, member.linkname))
                elif last_name != END_MEMBER and _is_extractable(member, folder):
                    with contextlib.suppress(tarfile.FilterError):
                        archive.extract(member, folder, filter="data")
    except tarfile.TarError as error:
        raise OSError(f"the archive is incomplete: {error}") from error
    if last_name != END_MEMBER:
        raise OSError("the archive is incomplete")
    for name, target in links:
        _make_link(folder, name.lstrip("/"), target)


def _check_limits(member: tarfile.TarInfo, number: int, folder: Path) -> None:
    """OSError if a tar would take more than this machine can give."""
    if number > _MAX_MEMBERS:
        raise OSError(f"the archive holds more than {_MAX_MEMBERS} files")
    if len(os.fsencode(member.name)) > _MAX_NAME_BYTES:
        raise OSError(f"the archive holds a name of more than {_MAX_NAME_BYTES} bytes: {member.name[:60]}...")
    free = shutil.disk_usage(folder).free
    if member.isreg() and member.size > max(0, free - _RESERVED_BYTES):
        raise OSError(f"no room here for {member.name}: {member.size >> 20} MiB, and {free >> 20} MiB are free")


def _is_extractable(member: tarfile.TarInfo, folder: Path) -> bool:
    """Whether it is a file, a folder, or a hard link to a file that is already unpacked."""
    return member.isreg() or member.isdir() or (member.islnk() and os.path.isfile(folder / member.linkname))


def _make_link(folder: Path, name: str, target: str) -> None:
    """Make a link only if it stays inside, whatever other links exist: it goes up (not too far), then down."""
    name_parts, target_parts = PurePosixPath(name).parts, PurePosixPath(target).parts
    up_count = next((index for index, step in enumerate(target_parts) if step != ".."), len(target_parts))
    stays_inside = (
        up_count < len(name_parts)
        and ".." not in (*name_parts, *target_parts[up_count:])
        and not target.startswith("/")
    )
    link_path = folder.joinpath(*name_parts)
    parents = (folder.joinpath(*name_parts[:depth]) for depth in range(1, len(name_parts)))
    if (
        stays_inside
        and not os.path.lexists(link_path)
        and not any(parent.is_symlink() or parent.is_file() for parent in parents)
    ):
        make_private_folder(link_path.parent)
        link_path.symlink_to(target)


def _merge_folder(source: Path, destination: Path) -> None:
    """Move the new files over the earlier ones. A link that is in the way is removed; none is followed."""
    if destination.is_symlink() or not destination.is_dir():
        destination.unlink(missing_ok=True)
        make_private_folder(destination)
    for entry in list(os.scandir(source)):
        target = destination / entry.name
        if entry.is_dir(follow_symlinks=False):
            _merge_folder(Path(entry.path), target)
            continue
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        os.replace(entry.path, target)
