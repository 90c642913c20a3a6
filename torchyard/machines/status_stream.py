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

    child: processes.ChildProcess
    stdout: IO[bytes]

    def __init__(self, process: Process, command: Command) -> None:
        self.process, self.command = process, command
        self.broken_at, self.is_complete, self.reason = math.inf, False, "it sent nothing"
        self._stderr = b""
        self.unheard_since = time.monotonic()  # infinite while output comes, or may come

    def handle_output(self, data: bytes) -> None:
        """Take a piece of the output; the last one is empty."""
        raise NotImplementedError

    def is_state_report(self, data: bytes) -> bool:
        """Whether a piece of its output reports the current state."""
        return bool(data)

    def open(self) -> IO[bytes]:
        """Start the command, the first time or again."""
        self.child = processes.start_stream(self.process.host, self.command)
        self._stderr = b""
        assert self.child.stdout is not None
        self.stdout, self.broken_at = self.child.stdout, math.inf
        return self.stdout

    def end(self, reason: str) -> None:
        """Handle the end of the output: it is whole, or the command is started again a second later."""
        stderr = self._stderr + processes.close_stream(self.child, 1.0)
        self.is_complete = self.child.returncode == 0 and not reason
        if not self.is_complete:
            self.fail(reason or processes.decode_last_line(stderr) or f"exit code {self.child.returncode}")

    def fail(self, reason: str) -> None:
        """Record that the command could not be started, or broke."""
        self.broken_at, self.reason = time.monotonic(), reason
        self.unheard_since = min(self.unheard_since, self.broken_at)

    def read_stderr(self) -> None:
        """Read the command's stderr, or it would block."""
        if not self.stdout.closed:
            self._stderr = processes.read_stderr(self.child) or self._stderr

    def close(self) -> None:
        if hasattr(self, "stdout") and not self.stdout.closed:  # it may never have been opened
            processes.close_stream(self.child, 0.0)


class StatusStream(CommandStream):
    """The status stream of a process: one JSON line at every change."""

    def __init__(self, process: Process, states: dict[str, Mapping[str, Any]]) -> None:
        super().__init__(process, process.status)
        self._states, self._unfinished_line, self._owner = states, b"", node_holder_identity(process.log)

    def open(self) -> IO[bytes]:
        self._unfinished_line, stdout = b"", super().open()
        assert self.child.stdin
        os.set_blocking(self.child.stdin.fileno(), False)
        return stdout

    def send_heartbeat(self) -> None:
        """Send a heartbeat with the owner's name, if the command reads it: a connection may still open, or hang."""
        with contextlib.suppress(OSError, ValueError):
            assert self.child.stdin
            os.write(self.child.stdin.fileno(), f"{self._owner}\n".encode())

    def handle_output(self, data: bytes) -> None:
        *lines, self._unfinished_line = (self._unfinished_line + data).split(b"\n")
        if len(self._unfinished_line) > _MAX_STATE_BYTES:
            raise OSError(f"a line of more than {_MAX_STATE_BYTES >> 10} KiB, where a state should be")
        for state in filter(None, map(_parse_state, lines)):
            self._states[self.process.name] = state
            other_owner = state.get("carrier")
            if other_owner and not is_holder(other_owner, str(Path(self.process.log).parents[2])):
                raise RunInUseError(f"{self.process.host}: {self.process.name}", other_owner)
            self._owner = other_owner or self._owner  # an earlier version gave this launcher another name
            if self.process.follow and state.get("started"):  # its log exists even if it prints nothing
                with contextlib.suppress(OSError):
                    _append_bytes(Path(self.process.log), b"")

    def is_state_report(self, data: bytes) -> bool:
        """Whether the state is current; `detail` says why it is an old one."""
        if self._states[self.process.name].get("detail"):
            self.unheard_since = min(self.unheard_since, time.monotonic())
            return False
        return bool(data)


def _parse_state(line: bytes) -> dict[str, Any]:
    """The valid facts of a state, as a host may send anything; empty if the line is none, as a shell's greeting."""
    try:
        state = json.loads(line[:_MAX_STATE_BYTES])
    except (ValueError, RecursionError):
        return {}
    return (
        {key: value for key, value in state.items() if _is_valid_value(key, value)} if isinstance(state, dict) else {}
    )


def _is_valid_value(key: str, value: Any) -> bool:
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

    def __init__(self, process: Process, command: Command) -> None:
        super().__init__(process, command)
        self._follow_command, self._path = command, Path(process.log)
        self._opened_size = self._size = 0
        self._opened_at = math.inf

    def open(self) -> IO[bytes]:
        self._opened_size = self._size = self._path.stat().st_size if self._path.exists() else 0
        self.command = Command(argv=(*self._follow_command.argv, str(self._size)), input=self._follow_command.input)
        self._opened_at = time.monotonic()
        return super().open()

    def handle_output(self, data: bytes) -> None:
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
        return self._size == self._opened_size and time.monotonic() - self._opened_at < _FIRST_BYTE_TIMEOUT_S


def _append_bytes(path: Path, data: bytes) -> None:
    make_private_folder(path.parent)
    with open(path, "ab", buffering=0, opener=open_private_file) as file:
        while data:
            data = data[file.write(data) :]
