"""Records what a pure function must not do: write files, start processes, open connections."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_EVENTS = frozenset(
    {"subprocess.Popen", "os.system", "os.posix_spawn", "os.exec", "os.fork", "socket.connect", "socket.bind"}
    | {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.putenv"}
)
_recording: list[list[str]] = []  # the open recordings; an audit hook cannot be removed, so it stays and checks this
_hooks: list[bool] = []  # not empty once the hook is installed


@contextmanager
def record_side_effects() -> Iterator[list[str]]:
    """The side effects of the code in the block, as text; empty if there are none. Reading files is not one."""
    if not _hooks:
        sys.addaudithook(_audit)
        _hooks.append(True)
    effects: list[str] = []
    _recording.append(effects)
    try:
        yield effects
    finally:
        _recording.remove(effects)


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if not _recording:
        return
    if event in _EVENTS:
        _record(f"{event} {args[:1]}")
    elif event == "open":
        path, _, flags = args
        if isinstance(flags, int) and flags & _WRITE_FLAGS:
            _record(f"open {path} for writing")


def _record(effect: str) -> None:
    for effects in _recording:
        effects.append(effect)
