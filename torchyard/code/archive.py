"""The code of a job as one tar.gz: packed when the profile is loaded, and linked into the folder of each run.

`runs/code` has the archives of the folders that were loaded last, by their digests. A run links its own before it saves
its plan, so a later load, which removes old archives, does not take it away.
"""

import gzip
import hashlib
import io
import os
import shutil
import tarfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torchyard.code.secret_files import is_secret_name, list_secret_lines
from torchyard.common.private_files import make_private_folder, open_private_file, sync_folder
from torchyard.common.project_root import runs_folder
from torchyard.host.code.old_archives import remove_old_archives
from torchyard.host.code.unpack import unpack_code
from torchyard.host.staging import sync_files
from torchyard.model.errors import CodeError, FolderError
from torchyard.model.plan import StagedCode
from torchyard.model.profile import CodeArchive

_MAX_ARCHIVES = 20  # in runs/code
_MAX_NAMED_SECRETS = 10  # in a message
_MODIFIED_AT = 315_532_800  # of every file, seconds since the epoch: 1980, because a zip has no earlier time
_LOST_REMEDY = "start a new run, which packs the folder again"


class PackedFolder(NamedTuple):
    """The archive of a folder, and its bytes."""

    archive: CodeArchive
    content: bytes


def code_folder() -> Path:
    """The folder with the archives of this machine."""
    return runs_folder() / "code"


def find_secrets(folder: Path, names: Sequence[str]) -> str | None:
    """A clause with the files of a folder that have secrets, and what to do; None if none has. OSError."""
    locations: list[str] = []
    for name in names:
        if is_secret_name(name):
            locations.append(f"{name} (by its name)")
        elif not os.path.islink(folder / name):
            locations += [f"{name}:{line}" for line in list_secret_lines((folder / name).read_bytes())]
    if not locations:
        return None
    locations_text = ", ".join(locations[:_MAX_NAMED_SECRETS])
    if len(locations) > _MAX_NAMED_SECRETS:
        locations_text += f" and {len(locations) - _MAX_NAMED_SECRETS} more"
    return (
        f"secrets would be readable for everyone who may read the job: {locations_text}. Exclude the files "
        "(code.exclude, or .gitignore), and pass the values in env, in pods as {secret: NAME, key: KEY}; on a line "
        "that is not a secret write the comment gitleaks:allow"
    )


def pack_folder(folder: Path, names: Sequence[str]) -> PackedFolder:
    """Pack files of a folder, in order and without owners and times: equal files make equal archives. OSError."""
    buffer = io.BytesIO()
    file_bytes = 0
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name in names:
            path = folder / name
            member = tarfile.TarInfo(name)
            member.mtime = _MODIFIED_AT
            if os.path.islink(path):
                member.type = tarfile.SYMTYPE
                member.linkname = os.readlink(path)
                tar.addfile(member)
                continue
            content = path.read_bytes()
            member.size = len(content)
            member.mode = 0o755 if os.access(path, os.X_OK) else 0o644
            file_bytes += len(content)
            tar.addfile(member, io.BytesIO(content))
    packed = buffer.getvalue()
    archive = CodeArchive(
        digest=hashlib.sha256(packed).hexdigest(),
        file_count=len(names),
        file_bytes=file_bytes,
        packed_bytes=len(packed),
    )
    return PackedFolder(archive, packed)


def store_archive(packed: PackedFolder) -> None:
    """Write an archive to `runs/code`, unless it is there, and remove the oldest ones there. OSError."""
    folder = code_folder()
    path = folder / f"{packed.archive.digest}.tar.gz"
    make_private_folder(folder)
    try:
        os.utime(path)  # the oldest are removed
    except FileNotFoundError:
        _write_atomically(path, packed.content)
        remove_old_archives(str(folder), _MAX_ARCHIVES)


def _read_stored_archive(path: Path, code: StagedCode) -> bytes:
    """The content of the archive of a run's code in `runs/code`. CodeError if it is not there any more, OSError."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        reason = f"{path} does not exist any more ({code.archive})"
        raise CodeError(code.archive.short_digest, reason, _LOST_REMEDY) from error


def keep_archive(code: StagedCode | None) -> None:
    """Link the archive of a run's code into the run's folder, unless it is there; nothing for a job without code.

    CodeError if this machine does not have it, FolderError if the run's folder cannot be written.
    """
    if code is None or os.path.exists(code.path):
        return
    path = Path(code.path)
    stored_path = code_folder() / f"{code.archive.digest}.tar.gz"
    try:
        make_private_folder(path.parent)
        try:
            os.link(stored_path, path)
        except OSError:  # a file system without hard links, if the archive exists
            _write_atomically(path, _read_stored_archive(stored_path, code))
        sync_folder(path.parent)  # a run that resumes after a power cut needs it
    except OSError as error:
        raise FolderError(str(path.parent), f"{path.name}: {error.strerror}") from error


def read_archive(code: StagedCode) -> bytes:
    """The bytes of a run's archive. CodeError if this machine does not have it, FolderError if it cannot be read."""
    path = Path(code.path)
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise CodeError(code.path, "it does not exist on this machine", _LOST_REMEDY) from error
    except OSError as error:
        raise FolderError(str(path.parent), f"{path.name}: {error.strerror}") from error
    if hashlib.sha256(content).hexdigest() != code.archive.digest:
        raise CodeError(code.path, "it was changed", _LOST_REMEDY)
    return content


def unpack_here(code: StagedCode) -> None:
    """Unpack a run's archive beside it, unless an earlier attempt has.

    All attempts share the folder, so that a later one finds what an earlier one wrote there. It gets its name once its
    files are on disk: one that exists is complete, also after a power cut. Errors as of `read_archive`.
    """
    if os.path.isdir(code.folder):
        return
    temp_folder = f"{code.folder}.part"
    content = read_archive(code)
    try:
        unpack_code(io.BytesIO(content), temp_folder, code.archive.digest)  # empties what is left of an earlier try
        sync_files(temp_folder)
        os.rename(temp_folder, code.folder)
    except OSError as error:
        shutil.rmtree(temp_folder, ignore_errors=True)
        reason = f"the code cannot be unpacked: {error.strerror or error}"
        raise FolderError(str(Path(code.path).parent), reason) from error


def _write_atomically(path: Path, content: bytes) -> None:
    """Write a private file that no reader sees incomplete. OSError."""
    temp_path = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(temp_path, "wb", opener=open_private_file) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temp_path.replace(path)
    finally:
        temp_path.unlink(missing_ok=True)
