#!/usr/bin/env python3
"""Unpack the code of a job: `unpack.py ARCHIVE FOLDER DIGEST`. Standard library only, Python 3.6 or newer.

It runs in the job's image, on hosts behind ssh, and on the launcher's machine. ARCHIVE is a tar.gz whose SHA-256 is
DIGEST. FOLDER is created, or emptied: a pod whose init containers run again must not keep files of the first time.
"""

import errno
import hashlib
import os
import shutil
import sys
import tarfile

_READ_BYTES = 1 << 20


def unpack_code(archive: str, folder: str, digest: str) -> None:
    """Unpack an archive into a folder. OSError if the digest differs or the files cannot be written."""
    actual = read_digest(archive)
    if actual != digest:
        raise OSError(errno.EIO, "SHA-256 is %s, not %s: the archive was changed or is incomplete" % (actual, digest))
    os.makedirs(folder, exist_ok=True)
    for entry in os.listdir(folder):
        _remove_entry(os.path.join(folder, entry))
    try:
        with tarfile.open(archive, "r:gz") as tar:
            tar.extraction_filter = _trust_member  # an older Python does not read it
            tar.extractall(folder)
    except tarfile.TarError as error:
        raise OSError(errno.EIO, str(error)) from error


def read_digest(path: str) -> str:
    """The SHA-256 of a file. OSError."""
    sha256 = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(_READ_BYTES), b""):
            sha256.update(chunk)
    return sha256.hexdigest()


def _remove_entry(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def _trust_member(member: tarfile.TarInfo, _folder: str) -> tarfile.TarInfo:
    """Extract each member as it is: the digest shows that the archive is the launcher's."""
    return member


if __name__ == "__main__":
    try:
        unpack_code(*sys.argv[1:])
    except OSError as unpack_error:
        message = unpack_error.strerror or unpack_error
        sys.exit("torchyard: cannot unpack the code into %s: %s" % (sys.argv[2], message))
