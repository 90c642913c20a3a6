"""The files of this machine that a profile puts into pods: read when it is loaded, so that its plan stays pure."""

import base64
import os.path
from collections.abc import Callable, Mapping
from pathlib import Path

from torchyard.loading.yaml_errors import NamedFileError, shorten_value

_MAX_FILES_BYTES = 1 << 20  # of a ConfigMap, all its files together


def read_local_files(files: object, locate: Callable[[str], Path]) -> dict[str, dict[str, str]]:
    """The content of each file, by its path in the pods. NamedFileError if one cannot be read, or all are too large."""
    if not isinstance(files, Mapping):
        raise NamedFileError("files", f"is a file for each path in the pods, not {shorten_value(repr(files))}")
    contents: dict[str, dict[str, str]] = {}
    total = 0
    for path, name in files.items():
        if not isinstance(name, str) or not name:
            message = f"{path} needs the name of a file of this machine, not {shorten_value(repr(name))}"
            raise NamedFileError("files", message, path)
        source = locate(os.path.expanduser(name))
        try:
            total += (size := _measure_file(source, path))
            if total > _MAX_FILES_BYTES:
                suffix = f", {total:,} with those before it" if contents else ""
                remedy = "mount a volume with it, or put it into the image"
                message = f"{source} has {size:,} bytes{suffix}, and a ConfigMap holds {_MAX_FILES_BYTES:,}: {remedy}"
                raise NamedFileError("files", message, path)
            contents[str(path)] = {"source": str(source), **_encode_content(source.read_bytes())}
        except OSError as error:
            raise NamedFileError("files", f"{source} cannot be read: {error.strerror}", path) from error
    return contents


def _measure_file(source: Path, path: object) -> int:
    if not source.is_file():
        reason = (
            "is a folder: name its files one by one" if source.is_dir() else "does not exist, or is no regular file"
        )
        raise NamedFileError("files", f"{source} {reason}", path)
    return source.stat().st_size


def _encode_content(content: bytes) -> dict[str, str]:
    """The content as text or, if it is none in UTF-8, in base64."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = "\0"
    return {"binary": base64.b64encode(content).decode()} if "\0" in text else {"text": text}
