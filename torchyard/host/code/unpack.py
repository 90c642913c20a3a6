#!/usr/bin/env python3
"""Unpack the code of a job: `unpack.py SOURCE FOLDER DIGEST`. Standard library only, Python 3.6 or newer.

It runs in the job's image, on hosts behind ssh, and on the launcher's machine. SOURCE is a folder with either
code.tar.gz or the file `url`, with the URL of that archive, whose SHA-256 is DIGEST. FOLDER is created, or emptied: a
pod whose init containers run again must not keep files of the first time.
"""

import errno
import hashlib
import os
import shutil
import sys
import tarfile
import tempfile
import time
from typing import IO

_READ_BYTES = 1 << 20
_DOWNLOAD_TRIES = 5
_DOWNLOAD_PAUSE_S = 3.0
_DOWNLOAD_TIMEOUT_S = 60.0  # without a byte


def unpack_source(source: str, folder: str, digest: str) -> None:
    """Unpack the archive in a folder, or at the URL that a file there names. OSError; it never contains the URL."""
    os.makedirs(folder, exist_ok=True)
    url_path = os.path.join(source, "url")
    if not os.path.exists(url_path):
        with open(os.path.join(source, "code.tar.gz"), "rb") as archive:
            unpack_code(archive, folder, digest)
        return
    with open(url_path, encoding="utf-8") as file:
        url = file.read().strip()
    # The image may have no other place that is large enough. The file has no name, so it is not among the code.
    with tempfile.TemporaryFile(dir=folder) as download:
        _download(url, download, digest)
        unpack_code(download, folder, digest)


def unpack_code(archive: IO[bytes], folder: str, digest: str) -> None:
    """Unpack an archive into a folder. OSError if the digest differs or the files cannot be written."""
    actual = read_digest(archive)
    if actual != digest:
        raise OSError(errno.EIO, "SHA-256 is %s, not %s: the archive was changed or is incomplete" % (actual, digest))
    os.makedirs(folder, exist_ok=True)
    for entry in os.listdir(folder):
        _remove_entry(os.path.join(folder, entry))
    archive.seek(0)
    try:
        with tarfile.open(fileobj=archive, mode="r:gz") as tar:
            tar.extraction_filter = _trust_member  # an older Python does not read it
            tar.extractall(folder)
    except tarfile.TarError as error:
        raise OSError(errno.EIO, str(error)) from error


def read_digest(archive: IO[bytes]) -> str:
    """The SHA-256 of a file from its start to its end. OSError."""
    archive.seek(0)
    sha256 = hashlib.sha256()
    for chunk in iter(lambda: archive.read(_READ_BYTES), b""):
        sha256.update(chunk)
    return sha256.hexdigest()


def _download(url: str, download: IO[bytes], digest: str) -> None:
    """Write what a URL serves to a file. OSError after several tries, or at once if the server refuses the request.

    A connection that breaks may look like the end of the file: only the digest shows that all of it came. After the
    last try the file may have another digest.
    """
    import http.client  # most code comes without a download, and these take a moment
    import urllib.error
    import urllib.request

    for tries_left in reversed(range(_DOWNLOAD_TRIES)):
        download.seek(0)
        download.truncate()
        try:
            with urllib.request.urlopen(url, timeout=_DOWNLOAD_TIMEOUT_S) as response:
                shutil.copyfileobj(response, download, _READ_BYTES)
            if not tries_left or read_digest(download) == digest:
                return
        except urllib.error.HTTPError as error:
            if error.code < 500 or not tries_left:
                hint = ": the signed URL may have expired" if error.code == 403 else ""
                raise OSError(errno.EIO, "the object store responded %d%s" % (error.code, hint)) from None
        except OSError as error:
            if not tries_left:
                reason = getattr(error, "reason", error)
                raise OSError(errno.EIO, "cannot download it: %s" % reason) from None
        except (ValueError, http.client.HTTPException) as error:
            if not tries_left:  # the error's text may contain the URL
                raise OSError(errno.EIO, "cannot download it: %s" % type(error).__name__) from None
        time.sleep(_DOWNLOAD_PAUSE_S)


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
        unpack_source(*sys.argv[1:])
    except OSError as unpack_error:
        message = unpack_error.strerror or unpack_error
        sys.exit("torchyard: cannot unpack the code into %s: %s" % (sys.argv[2], message))
