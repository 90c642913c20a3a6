"""Unpacks a tar from a host: nothing in it is trusted, and nothing is written outside its folder."""

import contextlib
import os
import shutil
import stat
import tarfile
from pathlib import Path, PurePosixPath
from typing import IO, Any, Self

from torchyard.common.json_text import parse_json
from torchyard.common.private_files import make_private_folder, sync_folder
from torchyard.host.staging import sync_files

END_MEMBER = "whole"  # the last member: without it a stream that breaks between two files would look complete
_MAX_LIST_BYTES = 64 * 2**20  # of the last member's content, which lists the files
_MAX_MEMBERS = 1_000_000
_MAX_NAME_BYTES = 1024
_MAX_HEADER_BYTES = 64 * 2**10  # of a name or of extended attributes, which are read into memory at once
_COPY_BYTES = 2**20
_RESERVED_BYTES = 100 * 2**20  # of the disk, left free for others
_HEADER_TYPES = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class _BoundedMember(tarfile.TarInfo):
    """A member whose headers fit into memory. Reading a larger one, or a sparse file, raises OSError."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str | None, errors: str) -> Self:
        member = super().frombuf(buf, encoding or "utf-8", errors)
        is_large_header = member.type in _HEADER_TYPES and member.size > _MAX_HEADER_BYTES
        if member.type == tarfile.GNUTYPE_SPARSE or is_large_header:
            raise OSError(f"not a tar of ours: a header of {member.size} bytes")
        return member


def unpack_archive(files: Path, stdin: IO[bytes], stdout: IO[bytes]) -> dict[str, Any]:
    """Unpack the tar that a command prints on `stdout` under `files`, completely or not at all.

    Returns what the last member lists: the files on the host that are copied now, of which the host may remove those
    that have not changed since: they are on this machine's disk, also after a power cut. Nothing in the tar is written
    outside of `files`: members that lead outside are skipped. Files that exist are replaced. Raises OSError if the tar
    is incomplete, or too large for this machine, or cannot be synced; `files` is unchanged then.
    """
    stdin.close()
    temp_folder = files.with_name(f"{files.name}.part")
    shutil.rmtree(temp_folder, ignore_errors=True)
    try:
        make_private_folder(temp_folder)
        copied = _extract_members(stdout, temp_folder)
        sync_files(str(temp_folder))
        if any(temp_folder.iterdir()):
            _merge_folder(temp_folder, files)
    finally:
        shutil.rmtree(temp_folder, ignore_errors=True)
    return copied


def _extract_members(stream: IO[bytes], folder: Path) -> dict[str, Any]:
    """Unpack into an empty folder, and return what the last member lists; what leads outside is skipped.

    OSError if the tar is incomplete, too large, or has no valid list. Links are created last, so that no file can be
    written through one.
    """
    last_name = ""
    copied: dict[str, Any] = {}
    links: list[tuple[str, str]] = []
    try:
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_BoundedMember) as archive:
            for index, member in enumerate(archive):
                archive.members = []  # type: ignore[attr-defined]  # else it keeps every name in memory
                last_name = member.name
                _check_limits(member, index, folder)
                if member.issym():
                    links.append((member.name, member.linkname))
                elif last_name == END_MEMBER:
                    copied = _read_list(archive, member)
                else:
                    _extract_member(archive, member, folder)
    except tarfile.TarError as error:
        raise OSError(f"the archive is incomplete: {error}") from error
    except (RecursionError, OverflowError) as error:  # tarfile calls itself for each header before a member
        raise OSError(f"not a tar of ours: its headers cannot be read: {error}") from error
    if last_name != END_MEMBER:
        raise OSError("the archive is incomplete")
    for name, target in links:
        _create_link(folder, name.lstrip("/"), target)
    return copied


def _read_list(archive: tarfile.TarFile, member: tarfile.TarInfo) -> dict[str, Any]:
    """The files that the last member lists; none if it is empty. OSError if it is too large or malformed."""
    if member.size > _MAX_LIST_BYTES:
        raise OSError(f"the list of its files is larger than {_MAX_LIST_BYTES >> 20} MiB")
    content = archive.extractfile(member)
    try:
        copied = parse_json(content.read() or b"{}") if content else {}
    except ValueError as error:
        raise OSError(f"the list of its files is malformed: {error}") from error
    if not isinstance(copied, dict):
        raise OSError("the list of its files is malformed")
    return copied


def _check_limits(member: tarfile.TarInfo, index: int, folder: Path) -> None:
    """OSError if a tar would take more than this machine can give."""
    if index > _MAX_MEMBERS:
        raise OSError(f"the archive holds more than {_MAX_MEMBERS} files")
    if len(os.fsencode(member.name)) > _MAX_NAME_BYTES:
        raise OSError(f"the archive holds a name of more than {_MAX_NAME_BYTES} bytes: {member.name[:60]}...")
    free_bytes = shutil.disk_usage(folder).free
    if member.size > max(0, free_bytes - _RESERVED_BYTES):  # of any kind: tarfile reads what it skips
        raise OSError(f"no room here for {member.name}: {member.size >> 20} MiB, and {free_bytes >> 20} MiB are free")


def _extract_member(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Create a file, a folder, or a hard link to a file that is already unpacked; skip everything else.

    The rules are those of tarfile's data filter, which Python 3.11.2 does not have. The folder contains no symbolic
    link yet, so a name without `..` cannot lead outside.
    """
    path = _get_path_inside(folder, member.name)
    if path is None:
        return
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
    elif member.isreg():
        path.parent.mkdir(parents=True, exist_ok=True)
        _extract_file(archive, member, path)
    elif member.islnk():
        target = _get_path_inside(folder, member.linkname)
        if target is not None and target != path and target.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.hardlink_to(target)


def _get_path_inside(folder: Path, name: str) -> Path | None:
    """The path of a member's name, without its leading slashes; None if the name leads outside or cannot be a path."""
    parts = PurePosixPath(name.lstrip("/")).parts
    if not parts or ".." in parts or "\0" in name:
        return None
    return folder.joinpath(*parts)


def _extract_file(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    """Write a member's content to a new file of this user, with the member's mode and time of change."""
    content = archive.extractfile(member)
    if content is None:
        return
    path.unlink(missing_ok=True)  # a name that comes twice must not be written through a hard link
    with path.open("xb") as file:
        shutil.copyfileobj(content, file, _COPY_BYTES)
        os.fchmod(file.fileno(), _get_safe_mode(member))
    with contextlib.suppress(OSError, OverflowError, ValueError):  # a time that this machine cannot store
        os.utime(path, (member.mtime, member.mtime))


def _get_safe_mode(member: tarfile.TarInfo) -> int:
    """The mode without setuid, setgid, sticky and the write bits of others; its owner can read and write the file."""
    mode = member.mode & 0o755
    if not mode & stat.S_IXUSR:
        mode &= ~0o111
    return mode | stat.S_IRUSR | stat.S_IWUSR


def _create_link(folder: Path, name: str, target: str) -> None:
    """Create a symbolic link only if it stays inside the folder, whatever other links exist.

    Its target goes up, but not above the folder, and then down. No folder on the way to the link may be a link itself.
    """
    name_parts = PurePosixPath(name).parts
    target_parts = PurePosixPath(target).parts
    up_count = 0
    while up_count < len(target_parts) and target_parts[up_count] == "..":
        up_count += 1
    goes_up_later = ".." in name_parts or ".." in target_parts[up_count:]
    if up_count >= len(name_parts) or goes_up_later or target.startswith("/"):
        return
    link_path = folder.joinpath(*name_parts)
    if os.path.lexists(link_path):
        return
    for depth in range(1, len(name_parts)):
        parent = folder.joinpath(*name_parts[:depth])
        if parent.is_symlink() or parent.is_file():
            return
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
    sync_folder(destination)
