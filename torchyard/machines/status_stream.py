"""Reads the output of a process's command as it comes: the status stream of its supervisor, or its log."""

import contextlib
import errno
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from torchyard.common.identity import identify_holder
from torchyard.common.private_files import make_private_folder, open_private_file
from torchyard.machines import processes
from torchyard.model.errors import RunInUseError
from torchyard.model.plan import Command, Process

MAX_STATE_BYTES = 64 * 2**10  # of a line of the status stream; a state takes 4 KiB
_MAX_COUNT = 1 << 53  # of a number in a state
_EXIT_TIMEOUT_S = 1.0  # after the end of the output
_FIRST_BYTE_TIMEOUT_S = 45.0  # seconds that a copy without a byte may still be connecting: ssh gives up sooner


def node_holder_identity(path: str) -> str:
    """This launcher as a run's owner: this machine and the run's locked folder, from a path in a node's folder."""
    return identify_holder(str(Path(path).parents[2]))


class CommandStream:
    """A long-lived command on a process's host whose output is read as it comes.

    Order of calls, all from the thread of the ProcessWatch that owns the stream: `open` starts the command and returns
    its stdout, for a selector; `handle_output` is called with each piece of output, last with an empty one; then `end`.
    After `end` or `fail`, `is_complete` is True if the command has exited with 0, and nothing more will come; otherwise
    `broken_at` is set, `reason` is why, and `open` may start the command again. `read_stderr` is called every few
    seconds. `close` ends the command at any time.

    `open` raises HostError if the command cannot be started. `handle_output` raises OSError if the output cannot be
    kept, which breaks the stream.
    """

    child: processes.ChildProcess  # from the first `open` on
    stdout: IO[bytes]

    def __init__(self, process: Process, command: Command) -> None:
        self.process = process
        self.command = command
        self.is_complete = False
        self.broken_at: float | None = None  # monotonic seconds; None while the command runs or has completed
        self.reason = "no output received"  # why the stream is broken or incomplete
        self.unheard_since: float | None = time.monotonic()  # None while output comes, or may come
        self._stderr = b""  # the last of it

    def handle_output(self, data: bytes) -> None:
        """Process a piece of the output; the last one is empty. Raises OSError if it cannot be kept."""
        raise NotImplementedError

    def update_contact(self, data: bytes) -> None:
        """Update `unheard_since` after a piece of output was handled."""
        if data:
            self.unheard_since = None

    def open(self) -> IO[bytes]:
        """Start the command, the first time or again; returns its stdout. Raises HostError if it cannot start."""
        self.child = processes.start_stream(self.process.host, self.command)
        self._stderr = b""
        assert self.child.stdout is not None
        self.stdout = self.child.stdout
        self.broken_at = None
        return self.stdout

    def end(self, error: OSError | None) -> None:
        """Handle the end of the output, or `error`: the stream is complete, or broken and started again later."""
        stderr = self._stderr + processes.close_stream(self.child, timeout_s=_EXIT_TIMEOUT_S)
        exit_code = self.child.returncode
        self.is_complete = exit_code == 0 and error is None
        if error is not None:
            self.fail(str(error))
        elif not self.is_complete:
            self.fail(processes.decode_last_line(stderr) or f"exit code {exit_code}")

    def fail(self, reason: str) -> None:
        """Record that the command could not be started, or broke."""
        self.broken_at = time.monotonic()
        self.reason = reason
        if self.unheard_since is None:
            self.unheard_since = self.broken_at

    def read_stderr(self) -> None:
        """Read the command's stderr: with a full pipe the command would block."""
        if not self.stdout.closed:
            self._stderr = processes.read_stderr(self.child) or self._stderr

    def close(self) -> None:
        """End the command, if it runs."""
        if hasattr(self, "stdout") and not self.stdout.closed:  # it may never have been opened
            processes.close_stream(self.child, timeout_s=0.0)


class StatusStream(CommandStream):
    """The status stream of a process: one JSON line per change of its state, and heartbeats to its supervisor.

    Each valid line replaces the process's entry in `states`, which the ProcessWatch shares with its callers. What a
    host sends is untrusted: other lines are ignored, and malformed values are left out (`_parse_state`).

    A heartbeat renews the lease in the name of this launcher. RunInUseError if the supervisor names another one.
    """

    def __init__(self, process: Process, states: dict[str, Mapping[str, Any]]) -> None:
        super().__init__(process, process.status)
        self._states = states
        self._unfinished_line = b""
        self._owner = node_holder_identity(process.log)

    def open(self) -> IO[bytes]:
        self._unfinished_line = b""
        stdout = super().open()
        assert self.child.stdin
        os.set_blocking(self.child.stdin.fileno(), False)  # a connection that hangs must not block the watch
        return stdout

    def send_heartbeat(self) -> None:
        """Send a heartbeat with the owner's name, if the command reads it: a connection may still open, or hang."""
        with contextlib.suppress(OSError, ValueError):
            assert self.child.stdin
            os.write(self.child.stdin.fileno(), f"{self._owner}\n".encode())

    def handle_output(self, data: bytes) -> None:
        *lines, self._unfinished_line = (self._unfinished_line + data).split(b"\n")
        if len(self._unfinished_line) > MAX_STATE_BYTES:
            raise OSError(f"a line of more than {MAX_STATE_BYTES >> 10} KiB, where a state should be")
        for line in lines:
            state = _parse_state(line)
            if state:
                self._apply_state(state)

    def _apply_state(self, state: dict[str, Any]) -> None:
        """Store a new state. RunInUseError if it names another launcher as the owner."""
        self._states[self.process.name] = state
        if state.get("other_owner"):
            raise RunInUseError(f"{self.process.host}: {self.process.name}", state["other_owner"])
        if self.process.follow and state.get("started"):  # its log exists even if it prints nothing
            with contextlib.suppress(OSError):
                append_bytes(Path(self.process.log), b"")

    def update_contact(self, data: bytes) -> None:
        """A state with a `detail`, the reason why it is an old one, does not count as contact."""
        if not self._states[self.process.name].get("detail"):
            super().update_contact(data)
        elif self.unheard_since is None:
            self.unheard_since = time.monotonic()


def _parse_state(line: bytes) -> dict[str, Any]:
    """The valid values of a state, as a host may send anything; empty if the line is not one (a shell's greeting)."""
    try:
        state = json.loads(line[:MAX_STATE_BYTES])
    except (ValueError, RecursionError):
        return {}
    if not isinstance(state, dict):
        return {}
    return {key: value for key, value in state.items() if _is_valid_value(key, value)}


def _is_valid_value(key: str, value: Any) -> bool:
    """Whether a state may have the value; unknown keys are accepted as they are."""
    match key:
        case "phase" | "error" | "other_owner" | "detail" | "name":
            return isinstance(value, str)
        case "exit" | "lost" | "lines" | "log_size":
            return value is None or (isinstance(value, int) and abs(value) < _MAX_COUNT)
        case "started" | "ended" | "abandoned":
            return value is None or (isinstance(value, float | int) and 0 <= value < _MAX_COUNT)  # not NaN either
        case _:
            return True


class LogCopy(CommandStream):
    """A copy of a log on another host, byte by byte.

    Each `open` requests the log from the byte at which the copy ends: nothing is transferred twice, and a line that
    was cut off is continued. If the copy was removed meanwhile, the next `open` starts at the first byte.
    """

    def __init__(self, process: Process, command: Command) -> None:
        super().__init__(process, command)
        self._follow_command = command
        self._path = Path(process.log)
        self._size = 0  # bytes of the copy
        self._opened_size = 0  # bytes of the copy when the command was started
        self._opened_at: float | None = None  # monotonic seconds

    def open(self) -> IO[bytes]:
        self._size = self._path.stat().st_size if self._path.exists() else 0
        self._opened_size = self._size
        self.command = Command(argv=(*self._follow_command.argv, str(self._size)), input=self._follow_command.input)
        self._opened_at = time.monotonic()
        return super().open()

    def handle_output(self, data: bytes) -> None:
        """Write what has arrived. FileNotFoundError if the copy was removed: it starts again at the first byte."""
        if self._size and not self._path.exists():
            raise FileNotFoundError(errno.ENOENT, "the copy was removed", str(self._path))
        if data:
            append_bytes(self._path, data)
            self._size += len(data)

    def is_behind(self, log_size: object) -> bool:
        """Whether output is still on its way: up to byte `log_size` of the log, as the host reported it.

        If the host reports no size, only the first byte is waited for, up to `_FIRST_BYTE_TIMEOUT_S`.
        """
        if isinstance(log_size, int):
            return self._size < log_size
        if self._size != self._opened_size:
            return False
        return self._opened_at is None or time.monotonic() - self._opened_at < _FIRST_BYTE_TIMEOUT_S


def append_bytes(path: Path, data: bytes) -> None:
    """Append to a private file, created if needed with its folder. Raises OSError."""
    make_private_folder(path.parent)
    with open(path, "ab", buffering=0, opener=open_private_file) as file:
        while data:
            data = data[file.write(data) :]
