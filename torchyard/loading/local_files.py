"""Read the local files that a profile puts into pods, when it is loaded: a plan is a pure function of the profile."""

import base64
import contextlib
import os.path
from collections.abc import Callable, Mapping
from pathlib import Path

from torchyard.loading.yaml_errors import ProfileKeyError, shorten_value

_MAX_FILES_BYTES = 1 << 20  # of a ConfigMap, all its files together


def read_local_files(files: object, locate: Callable[[str], Path]) -> dict[str, dict[str, str]]:
    """The content of each file, by its path in the pods. `locate` converts a name in the profile to a path.

    ProfileKeyError if a file cannot be read, or if they are too large together.
    """
    if not isinstance(files, Mapping):
        raise ProfileKeyError("files", f"is a file for each path in the pods, not {shorten_value(repr(files))}")
    contents: dict[str, dict[str, str]] = {}
    total_bytes = 0
    for path, name in files.items():
        if not isinstance(name, str) or not name:
            message = f"{path} needs the name of a file on this machine, not {shorten_value(repr(name))}"
            raise ProfileKeyError("files", message, path)
        source = locate(os.path.expanduser(name))
        try:
            file_bytes = _measure_file(source, path)
            total_bytes += file_bytes
            if total_bytes > _MAX_FILES_BYTES:
                size = f"{file_bytes:,} bytes"
                if contents:
                    size += f", {total_bytes:,} with those before it"
                remedy = "mount a volume with it, or put it into the image"
                message = f"{source} has {size}, and a ConfigMap holds {_MAX_FILES_BYTES:,}: {remedy}"
                raise ProfileKeyError("files", message, path)
            contents[str(path)] = {"source": str(source)} | _encode_content(source.read_bytes())
        except OSError as error:
            raise ProfileKeyError("files", f"{source} cannot be read: {error.strerror}", path) from error
    return contents


def _measure_file(source: Path, path: object) -> int:
    """The size of a file in bytes. ProfileKeyError if it is not a regular file; `path`: its key in `files`."""
    if source.is_dir():
        raise ProfileKeyError("files", f"{source} is a folder: name its files one by one", path)
    if not source.is_file():
        raise ProfileKeyError("files", f"{source} does not exist, or is not a regular file", path)
    return source.stat().st_size


def _encode_content(content: bytes) -> dict[str, str]:
    """The content as text, or in base64 if it is not UTF-8 or contains NUL."""
    if b"\0" not in content:
        with contextlib.suppress(UnicodeDecodeError):
            return {"text": content.decode()}
    return {"binary": base64.b64encode(content).decode()}
