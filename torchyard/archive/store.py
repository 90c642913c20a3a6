"""The archive: the object store, or folder, that TORCHYARD_ARCHIVE names by a URL that fsspec understands.

fsspec and the package of the protocol are imported only if there is an archive: each of them takes long to import.
"""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from torchyard.common import secrets
from torchyard.common.packages import need
from torchyard.common.private_files import make_private_folder
from torchyard.model.errors import ArchiveError, MissingPackageError, NoArchiveError

ARCHIVE_VARIABLE = "TORCHYARD_ARCHIVE"
HISTORY = "history"  # the folder of all runs' numbers, beside the runs
MARKER = "torchyard-archive"  # the object at the archive's root that proves that it is there
_MARKER_TEXT = b"The root of a torchyard archive. Without this object torchyard does not use the archive.\n"
_CHUNK_BYTES = 1 << 20  # a slow store shows its progress after each
_LOCAL_PROTOCOLS = ("file", "local")
_MARKER_REMEDY = (
    f"mount its share, or correct {ARCHIVE_VARIABLE}; a new archive is created once, with `torchyard archive init`"
)
_SET_REMEDY = f"set {ARCHIVE_VARIABLE} to another URL, or unset it"
T = TypeVar("T")


class Store:
    """The archive; files are named by their paths below its root.

    Each call may take as long as the store's client retries. Threads may share it, as far as the client of the protocol
    allows. Every call raises ArchiveError if the store refuses, fails or cannot be reached, and NoArchiveError if its
    root has no marker; only an empty result means that there is nothing.

    A share that is not mounted, and a URL with a wrong prefix, look like an empty archive. `initialize` writes the
    marker, for the user who creates the archive; nothing else does, so that a root without it is never taken for an
    archive without runs.
    """

    def __init__(self, url: str) -> None:
        self.url = secrets.mask_text(url.rstrip("/"))
        files, root = self._guard("open it", lambda: _open_files(url))
        self._files = files
        self._root = root
        self._is_local = url.partition("://")[0] in _LOCAL_PROTOCOLS
        self._has_proven_marker = False

    def initialize(self) -> bool:
        """Make this root an archive, also if it has other files; return False if it already is one."""
        if self.has_marker():
            return False
        self._guard(f"write {MARKER}", lambda: self._write_file(MARKER, _MARKER_TEXT))
        return True

    def has_marker(self) -> bool:
        """Whether the root is that of an archive."""

        def read_marker() -> bool:
            try:
                self._files.cat_file(f"{self._root}/{MARKER}")
            except FileNotFoundError:
                return False
            return True

        return self._guard(f"read {MARKER}", read_marker)

    def require_marker(self) -> None:
        """Raise NoArchiveError if the root is not that of an archive."""
        if self._has_proven_marker:
            return
        if not self.has_marker():
            reason = f"it is not mounted, or not an archive (it has no {MARKER})"
            raise NoArchiveError(self.url, reason, _MARKER_REMEDY)
        self._has_proven_marker = not self._is_local  # a folder's share may be unmounted at any time

    def list_files(self, folder: str) -> dict[str, int]:
        """The sizes in bytes of all files below a folder, by their paths relative to it; empty if it does not exist.

        `folder`: relative to the root; "" is the root itself.
        """
        path = f"{self._root}/{folder}" if folder else self._root

        def find() -> dict[str, dict[str, Any]]:
            if self._is_local and not _is_folder(path):
                return {}
            options = {"on_error": "raise"} if self._is_local else {}  # else fsspec leaves out what it may not read
            entries: dict[str, dict[str, Any]] = self._files.find(path, detail=True, **options)
            return entries

        prefix = f"{path}/"
        entries = self._call(f"list {folder}" if folder else "list its files", find)
        return {
            name.removeprefix(prefix): int(entry["size"]) for name, entry in entries.items() if name.startswith(prefix)
        }

    def list_runs(self) -> list[str]:
        """The names of all runs."""
        entries = self._call("list its runs", lambda: self._files.ls(self._root, detail=True))
        names = (entry["name"].rstrip("/").rpartition("/")[2] for entry in entries if entry["type"] == "directory")
        return sorted(name for name in names if name != HISTORY)

    def read(self, name: str) -> bytes:
        return self._call(f"read {name}", lambda: bytes(self._files.cat_file(f"{self._root}/{name}")))

    def read_all(self, names: list[str]) -> dict[str, bytes]:
        """Several small files by name, read at the same time if the store's client can do that."""
        if not names:
            return {}
        prefix = f"{self._root}/"
        contents = self._call("read it", lambda: self._files.cat([prefix + name for name in names]))
        return {name.removeprefix(prefix): bytes(data) for name, data in contents.items()}

    def fetch(self, name: str, path: Path, on_chunk: Callable[[], object]) -> None:
        """Copy a file of any size from the archive to this path; `on_chunk` is called before each chunk is written.

        An error of `on_chunk` ends the copy.
        """

        def read_chunks() -> None:
            source_path = f"{self._root}/{name}"
            with self._files.open(source_path, "rb", block_size=_CHUNK_BYTES) as source, path.open("wb") as target:
                while chunk := source.read(_CHUNK_BYTES):
                    on_chunk()
                    target.write(chunk)

        self._call(f"read {name}", read_chunks)

    def write(self, name: str, data: bytes) -> None:
        self._call(f"write {name}", lambda: self._write_file(name, data))

    def copy(self, path: Path, name: str, on_bytes: Callable[[], object]) -> None:
        """Copy a file of any size to the archive; `on_bytes` is called as it makes progress."""
        from fsspec.callbacks import Callback

        class ProgressCallback(Callback):  # type: ignore[misc] # fsspec has no types
            def call(self, *_: Any, **__: Any) -> None:
                on_bytes()

        def put() -> None:
            self._make_local_folder(name)
            self._files.put_file(str(path), f"{self._root}/{name}", callback=ProgressCallback())

        self._call(f"write {name}", put)

    def _write_file(self, name: str, data: bytes) -> None:
        self._make_local_folder(name)
        self._files.pipe_file(f"{self._root}/{name}", data)

    def _make_local_folder(self, name: str) -> None:
        """Create a file's folder in an archive on a disk: only this user may read it, as for run folders."""
        if self._is_local:
            make_private_folder(Path(self._root, name).parent)

    def _call(self, action: str, operation: Callable[[], T]) -> T:
        """Run an operation on an archive whose marker is there, in a folder also afterwards."""
        self.require_marker()
        result = self._guard(action, operation)
        self.require_marker()
        return result

    def _guard(self, action: str, operation: Callable[[], T]) -> T:
        try:
            return operation()
        except ArchiveError:
            raise
        except Exception as error:  # each protocol has its own errors
            raise ArchiveError(self.url, f"cannot {action}: {_describe_error(error)}") from error


def open_store() -> Store | None:
    """The archive; None if there is none. ArchiveError if its URL is wrong or the package for it is missing."""
    return Store(_read_url()) if is_archive_set() else None


def is_archive_set() -> bool:
    """Whether TORCHYARD_ARCHIVE names an archive."""
    return bool(_read_url())


def _read_url() -> str:
    return os.environ.get(ARCHIVE_VARIABLE, "").strip()


def call_bounded(operation: Callable[[], T], timeout_s: float, url: str) -> T:
    """Call the store on a thread, and return the result. ArchiveError if it fails or takes longer than `timeout_s`.

    A call that hangs keeps its daemon thread, which does not prevent the process from exiting: `operation` only reads,
    because it may run on when its caller has continued.
    """
    results: list[T | ArchiveError] = []

    def call() -> None:
        try:
            results.append(operation())
        except ArchiveError as error:
            results.append(error)
        except Exception as error:  # of what was read: callers report it like any failed read
            failure = ArchiveError(url, f"cannot use what was read: {type(error).__name__}: {_describe_error(error)}")
            failure.__cause__ = error
            results.append(failure)

    thread = threading.Thread(target=call, daemon=True, name="archive")
    thread.start()
    thread.join(timeout_s)
    result = results[0] if results else ArchiveError(url, f"no answer for {timeout_s:.0f} s")
    if isinstance(result, ArchiveError):
        raise result
    return result


def _open_files(url: str) -> tuple[Any, str]:
    """The client of the URL's protocol, and the root's path in it."""
    protocol, separator, rest = url.partition("://")
    masked_url = secrets.mask_text(url)
    if not separator or not rest.strip("/"):
        raise ArchiveError(masked_url, "this is not a URL such as s3://BUCKET/PREFIX or file:///FOLDER", _SET_REMEDY)
    try:
        need(f"an archive at {protocol}://", "fsspec", protocol=protocol)
    except MissingPackageError as error:
        raise ArchiveError(masked_url, error.problem, error.remedy) from error
    from fsspec.core import url_to_fs

    options = {"auto_mkdir": True} if protocol in _LOCAL_PROTOCOLS else {}
    try:
        files, root = url_to_fs(url, use_listings_cache=False, skip_instance_cache=True, **options)
    except ImportError as error:
        remedy = f"install that package, or {_SET_REMEDY}"
        raise ArchiveError(masked_url, f"the package for {protocol}:// is missing: {error}", remedy) from error
    except ValueError as error:
        raise ArchiveError(masked_url, str(error), _SET_REMEDY) from error
    return files, str(root).rstrip("/")


def _is_folder(path: str) -> bool:
    """Whether a local folder exists. OSError if that cannot be checked."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


def _describe_error(error: BaseException) -> str:
    """An error in one line; by the name of its class if it has no message."""
    message = " ".join(str(error).split()) or type(error).__name__
    return secrets.mask_text(message[:500])
