"""One command of a block whose output is taken as it comes: what its keeper says, or its log."""

import contextlib
import errno
import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from torchyard.common.identity import holder_identity, is_holder
from torchyard.common.private_files import make_private_folder, open_private_file
from torchyard.machines import processes
from torchyard.model.errors import RunInUseError
from torchyard.model.plan import Command, Process

_MAX_STATE_BYTES = 64 * 2**10  # of a keeper's word; it takes 4 KiB
_MAX_COUNT = 1 << 53  # of what a state counts
_FIRST_BYTE_TIMEOUT_S = 45.0  # that a copy without a byte may still be on its way to its host: ssh gives up sooner


def node_holder_identity(path: str) -> str:
    """Who carries a run from here, by a path in a node's folder: this machine and the run's folder, which is locked."""
    return holder_identity(str(Path(path).parents[2]))


class CommandStream:
    """A command whose output is taken as it comes; a broken one (a dropped connection, a kill) is started anew."""

    process: processes.ChildProcess
    stdout: IO[bytes]

    def __init__(self, block: Process, command: Command) -> None:
        self.block, self.command = block, command
        self.broken_at, self.whole, self.said = math.inf, False, "nothing came"
        self._beside = b""
        self.unheard_since = time.monotonic()  # infinite while something comes, or may come

    def take(self, data: bytes) -> None:
        """Take a piece of the output; the last one is empty."""
        raise NotImplementedError

    def tells(self, data: bytes) -> bool:
        """Whether a piece of its output says how things are now."""
        return bool(data)

    def open(self) -> IO[bytes]:
        """Start the command, the first time or again."""
        self.process = processes.start_stream(self.block.host, self.command)
        self._beside = b""
        assert self.process.stdout is not None
        self.stdout, self.broken_at = self.process.stdout, math.inf
        return self.stdout

    def end(self, why: str) -> None:
        """Its output has ended: well, or to be begun again a second later."""
        said = self._beside + processes.close_stream(self.process, 1.0)
        self.whole = self.process.returncode == 0 and not why
        if not self.whole:
            self.fail(why or processes.decode_last_line(said) or f"exit code {self.process.returncode}")

    def fail(self, why: str) -> None:
        """It could not be begun, or broke."""
        self.broken_at, self.said = time.monotonic(), why
        self.unheard_since = min(self.unheard_since, self.broken_at)

    def hear_beside(self) -> None:
        """Take what the command says beside its output, or it would wait for that."""
        if not self.stdout.closed:
            self._beside = processes.read_stderr(self.process) or self._beside

    def close(self) -> None:
        if hasattr(self, "stdout") and not self.stdout.closed:  # it may never have been opened
            processes.close_stream(self.process, 0.0)


class StatusStream(CommandStream):
    """A block's own word: one JSON line at every change."""

    def __init__(self, block: Process, seen: dict[str, Mapping[str, Any]]) -> None:
        super().__init__(block, block.status)
        self._seen, self._partial, self._carrier = seen, b"", node_holder_identity(block.log)

    def open(self) -> IO[bytes]:
        self._partial, out = b"", super().open()
        assert self.process.stdin
        os.set_blocking(self.process.stdin.fileno(), False)
        return out

    def look(self) -> None:
        """Say who looks after the block, if it listens: a connection may be on its way, or hang."""
        with contextlib.suppress(OSError, ValueError):
            assert self.process.stdin
            os.write(self.process.stdin.fileno(), f"{self._carrier}\n".encode())

    def take(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > _MAX_STATE_BYTES:
            raise OSError(f"a line of more than {_MAX_STATE_BYTES >> 10} KiB, where a state should be")
        for said in filter(None, map(_parse_state, lines)):
            self._seen[self.block.name] = said
            other = said.get("carrier")
            if other and not is_holder(other, str(Path(self.block.log).parents[2])):
                raise RunInUseError(f"{self.block.host}: {self.block.name}", other)
            self._carrier = other or self._carrier  # the version before gave this place another name
            if self.block.follow and said.get("started"):  # where it is silent, its log is there as well
                with contextlib.suppress(OSError):
                    _append_bytes(Path(self.block.log), b"")

    def tells(self, data: bytes) -> bool:
        """`detail` says why the state beside it is an old one."""
        if self._seen[self.block.name].get("detail"):
            self.unheard_since = min(self.unheard_since, time.monotonic())
            return False
        return bool(data)


def _parse_state(line: bytes) -> dict[str, Any]:
    """A keeper's word, as far as it is one: a host may say anything. Empty where it is none, as a shell's greeting."""
    try:
        said = json.loads(line[:_MAX_STATE_BYTES])
    except (ValueError, RecursionError):
        return {}
    return {key: value for key, value in said.items() if _is_valid_fact(key, value)} if isinstance(said, dict) else {}


def _is_valid_fact(key: str, value: Any) -> bool:
    """Whether a value is one that a state may have; what is not known is taken as it is."""
    match key:
        case "phase" | "error" | "carrier" | "detail" | "name":
            return isinstance(value, str)
        case "exit" | "lost" | "lines" | "log_size":
            return value is None or (isinstance(value, int) and abs(value) < _MAX_COUNT)
        case "started" | "ended" | "abandoned":
            return value is None or (isinstance(value, float | int) and 0 <= value < _MAX_COUNT)  # not NaN either
        case _:
            return True


class LogCopy(CommandStream):
    """A log that is written elsewhere, copied byte by byte: what has come is never asked for again."""

    def __init__(self, block: Process, command: Command) -> None:
        super().__init__(block, command)
        self._follow, self._path = command, Path(block.log)
        self._begun = self._size = 0
        self._opened_at = math.inf

    def open(self) -> IO[bytes]:
        self._begun = self._size = self._path.stat().st_size if self._path.exists() else 0
        self.command = Command(argv=(*self._follow.argv, str(self._size)), input=self._follow.input)
        self._opened_at = time.monotonic()
        return super().open()

    def take(self, data: bytes) -> None:
        """Write what has come. FileNotFoundError where the copy was removed: it is begun anew from its first byte."""
        if self._size and not self._path.exists():
            raise FileNotFoundError(errno.ENOENT, "the copy was removed", str(self._path))
        if data:
            _append_bytes(self._path, data)
            self._size += len(data)

    def is_behind(self, size: object) -> bool:
        """Whether what was said is still on its way: of a log whose `size` there is not told, its first byte."""
        if isinstance(size, int):
            return self._size < size
        return self._size == self._begun and time.monotonic() - self._opened_at < _FIRST_BYTE_TIMEOUT_S


def _append_bytes(path: Path, data: bytes) -> None:
    make_private_folder(path.parent)
    with open(path, "ab", buffering=0, opener=open_private_file) as file:
        while data:
            data = data[file.write(data) :]
