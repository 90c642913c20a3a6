"""Reads the output of a process's command as it comes: the status stream of its supervisor, or its log."""

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

_MAX_STATE_BYTES = 64 * 2**10  # of a line of the status stream; a state takes 4 KiB
_MAX_COUNT = 1 << 53  # of a number in a state
_FIRST_BYTE_TIMEOUT_S = 45.0  # seconds that a copy without a byte may still be connecting: ssh gives up sooner


def node_holder_identity(path: str) -> str:
    """This launcher as a run's owner: this machine and the run's locked folder, from a path in a node's folder."""
    return holder_identity(str(Path(path).parents[2]))


class CommandStream:
    """A command whose output is read as it comes; a broken one (a dropped connection, a kill) is started again."""

    process: processes.ChildProcess
    stdout: IO[bytes]

    def __init__(self, block: Process, command: Command) -> None:
        self.block, self.command = block, command
        self.broken_at, self.whole, self.said = math.inf, False, "it sent nothing"
        self._beside = b""
        self.unheard_since = time.monotonic()  # infinite while output comes, or may come

    def feed(self, data: bytes) -> None:
        """Take a piece of the output; the last one is empty."""
        raise NotImplementedError

    def is_answer(self, data: bytes) -> bool:
        """Whether a piece of its output reports the current state."""
        return bool(data)

    def open(self) -> IO[bytes]:
        """Start the command, the first time or again."""
        self.process = processes.start_stream(self.block.host, self.command)
        self._beside = b""
        assert self.process.stdout is not None
        self.stdout, self.broken_at = self.process.stdout, math.inf
        return self.stdout

    def end(self, why: str) -> None:
        """Handle the end of the output: it is whole, or the command is started again a second later."""
        said = self._beside + processes.close_stream(self.process, 1.0)
        self.whole = self.process.returncode == 0 and not why
        if not self.whole:
            self.fail(why or processes.decode_last_line(said) or f"exit code {self.process.returncode}")

    def fail(self, why: str) -> None:
        """Record that the command could not be started, or broke."""
        self.broken_at, self.said = time.monotonic(), why
        self.unheard_since = min(self.unheard_since, self.broken_at)

    def read_stderr(self) -> None:
        """Read the command's stderr, or it would block."""
        if not self.stdout.closed:
            self._beside = processes.read_stderr(self.process) or self._beside

    def close(self) -> None:
        if hasattr(self, "stdout") and not self.stdout.closed:  # it may never have been opened
            processes.close_stream(self.process, 0.0)


class StatusStream(CommandStream):
    """The status stream of a process: one JSON line at every change."""

    def __init__(self, block: Process, seen: dict[str, Mapping[str, Any]]) -> None:
        super().__init__(block, block.status)
        self._seen, self._partial, self._carrier = seen, b"", node_holder_identity(block.log)

    def open(self) -> IO[bytes]:
        self._partial, out = b"", super().open()
        assert self.process.stdin
        os.set_blocking(self.process.stdin.fileno(), False)
        return out

    def send_heartbeat(self) -> None:
        """Send a heartbeat with the owner's name, if the command reads it: a connection may still open, or hang."""
        with contextlib.suppress(OSError, ValueError):
            assert self.process.stdin
            os.write(self.process.stdin.fileno(), f"{self._carrier}\n".encode())

    def feed(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > _MAX_STATE_BYTES:
            raise OSError(f"a line of more than {_MAX_STATE_BYTES >> 10} KiB, where a state should be")
        for said in filter(None, map(_parse_state, lines)):
            self._seen[self.block.name] = said
            other = said.get("carrier")
            if other and not is_holder(other, str(Path(self.block.log).parents[2])):
                raise RunInUseError(f"{self.block.host}: {self.block.name}", other)
            self._carrier = other or self._carrier  # an earlier version gave this launcher another name
            if self.block.follow and said.get("started"):  # its log exists even if it prints nothing
                with contextlib.suppress(OSError):
                    _append_bytes(Path(self.block.log), b"")

    def is_answer(self, data: bytes) -> bool:
        """Whether the state is current; `detail` says why it is an old one."""
        if self._seen[self.block.name].get("detail"):
            self.unheard_since = min(self.unheard_since, time.monotonic())
            return False
        return bool(data)


def _parse_state(line: bytes) -> dict[str, Any]:
    """The valid facts of a state, as a host may send anything; empty if the line is none, as a shell's greeting."""
    try:
        said = json.loads(line[:_MAX_STATE_BYTES])
    except (ValueError, RecursionError):
        return {}
    return {key: value for key, value in said.items() if _is_valid_fact(key, value)} if isinstance(said, dict) else {}


def _is_valid_fact(key: str, value: Any) -> bool:
    """Whether a state may have the value; unknown keys are accepted as they are."""
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
    """A copy of a log on another host, byte by byte: what has arrived is never requested again."""

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

    def feed(self, data: bytes) -> None:
        """Write what has arrived. FileNotFoundError if the copy was removed: it starts again at the first byte."""
        if self._size and not self._path.exists():
            raise FileNotFoundError(errno.ENOENT, "the copy was removed", str(self._path))
        if data:
            _append_bytes(self._path, data)
            self._size += len(data)

    def is_behind(self, size: object) -> bool:
        """Whether output is still on its way: up to `size`, or the first byte if the host reports no size."""
        if isinstance(size, int):
            return self._size < size
        return self._size == self._begun and time.monotonic() - self._opened_at < _FIRST_BYTE_TIMEOUT_S


def _append_bytes(path: Path, data: bytes) -> None:
    make_private_folder(path.parent)
    with open(path, "ab", buffering=0, opener=open_private_file) as file:
        while data:
            data = data[file.write(data) :]
