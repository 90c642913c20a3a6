"""Read the local files that a profile puts into pods, when it is loaded: a plan is a pure function of the profile."""

import base64
import contextlib
import os.path
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from torchyard.loading.yaml_errors import ProfileKeyError, shorten_value

_MAX_FILES_BYTES = 832 << 10  # all files together: a ConfigMap holds 1 MiB, of which torchyard's own get 192 KiB


class LocalFiles(NamedTuple):
    """The content of each file, by its path in the pods, and the mistakes of the others."""

    contents: dict[str, dict[str, str]]
    mistakes: tuple[ProfileKeyError, ...]


def read_local_files(files: object, locate: Callable[[str], Path]) -> LocalFiles:
    """Read the files that a profile names by their path in the pods. `locate` converts such a name to a path here.

    A file that cannot be read is a mistake, and so is the first one with which they are too large together.
    """
    if not isinstance(files, Mapping):
        message = f"is a file for each path in the pods, not {shorten_value(repr(files))}"
        return LocalFiles({}, (ProfileKeyError("files", message),))
    contents: dict[str, dict[str, str]] = {}
    mistakes: list[ProfileKeyError] = []
    total_bytes = 0
    for path, name in files.items():
        try:
            source = _locate_source(name, path, locate)
            file_bytes = _measure_file(source, path)
            total_bytes += file_bytes
            if total_bytes > _MAX_FILES_BYTES:
                mistakes.append(_build_size_error(source, path, file_bytes, total_bytes))
                break
            contents[str(path)] = {"source": str(source)} | _encode_content(source.read_bytes())
        except ProfileKeyError as mistake:
            mistakes.append(mistake)
        except OSError as error:
            mistakes.append(ProfileKeyError("files", f"{name} cannot be read: {error.strerror}", path))
    return LocalFiles(contents, tuple(mistakes))


def _locate_source(name: object, path: object, locate: Callable[[str], Path]) -> Path:
    """The file here with this name. ProfileKeyError if it is not a name; `path`: its key in `files`."""
    if not isinstance(name, str) or not name:
        message = f"{path} needs the name of a file on this machine, not {shorten_value(repr(name))}"
        raise ProfileKeyError("files", message, path)
    return locate(os.path.expanduser(name))


def _build_size_error(source: Path, path: object, file_bytes: int, total_bytes: int) -> ProfileKeyError:
    size = f"{file_bytes:,} bytes"
    if total_bytes > file_bytes:
        size += f", {total_bytes:,} with those before it"
    remedy = "mount a volume with it, or put it into the image"
    return ProfileKeyError("files", f"{source} has {size}, the limit is {_MAX_FILES_BYTES:,}: {remedy}", path)


def _measure_file(source: Path, path: object) -> int:
    """The size of a file in bytes. ProfileKeyError if it is not a regular file; `path`: its key in `files`."""
    if os.path.isdir(source):
        raise ProfileKeyError("files", f"{source} is a folder: name its files one by one", path)
    if not os.path.isfile(source):
        raise ProfileKeyError("files", f"{source} does not exist, or is not a regular file", path)
    return source.stat().st_size


def _encode_content(content: bytes) -> dict[str, str]:
    """The content as text, or in base64 if it is not UTF-8 or contains NUL."""
    if b"\0" not in content:
        with contextlib.suppress(UnicodeDecodeError):
            return {"text": content.decode()}
    return {"binary": base64.b64encode(content).decode()}
