"""The connection to a host while a job runs: states and logs of all processes there come, heartbeats go."""

import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

from torchyard.common.json_text import parse_json
from torchyard.common.log import get_log
from torchyard.host.log import ENDED_PHASES
from torchyard.host.state import FOLDER_REMOVED
from torchyard.machines import processes
from torchyard.machines.host_script import build_command
from torchyard.machines.log_copy import LogCopy
from torchyard.machines.ownership import identify_owner, record_confirmation
from torchyard.model.errors import RunInUseError
from torchyard.model.plan import HostScript, Process

MAX_LINE_BYTES = 64 * 2**10  # of a line; a state takes 4 KiB
_MAX_PIECE_BYTES = 1 << 20  # of a log
_MAX_COUNT = 1 << 53  # of a number in a state
_EXIT_TIMEOUT_S = 1.0  # after the end of the output
_MAX_UNHEARD_S = 6.0  # seconds without output, of three heartbeats: then the connection is cut, whatever ssh reports


class HostStream:
    """The connection to the script of one host (host/watch.py is its other end).

    Order of calls, all from the thread of the ProcessWatch that owns the stream: `open` starts the command and returns
    its stdout, for a selector; `handle_output` is called with each piece of output, last with an empty one; then `end`.
    After `end` or `fail`, `is_complete` is True if every process has ended and every log is copied, and nothing more
    will come; otherwise `broken_at` is set, `reason` is why, and `open` may start the command again. `stderr` is read
    whenever it is readable; `send_heartbeat` and `retry_copies` are called every few seconds. `close` ends the command
    at any time.

    A started command is not a connection: ssh may take a minute to connect, or to notice that the network is cut. The
    host responds to each heartbeat, and only while its output arrives the stream is connected (`is_connected`).

    `open` raises HostError if the command cannot be started. `handle_output` raises OSError if the host sends what
    cannot be read, and RunInUseError if the supervisors name another owner of the run.

    Each state replaces the process's entry in `states`, which the ProcessWatch shares with its callers. What a host
    sends is untrusted: lines that are not the protocol's are ignored, such as a shell's greeting, and malformed values
    of a state are left out (`_parse_state`). Only a log whose copy here cannot be read or written is requested again,
    once it can; states and heartbeats go on meanwhile.
    """

    child: processes.ChildProcess  # from the first `open` on
    stdout: IO[bytes]
    stderr: processes.StderrTail

    def __init__(
        self,
        script: HostScript,
        members: Sequence[Process],
        states: dict[str, Mapping[str, Any]],
        *,
        renews_leases: bool,
    ) -> None:
        self.script = script
        self.is_complete = False
        self.broken_at: float | None = None  # monotonic seconds; None while the command runs or has completed
        self.reason = ""  # why the stream is broken or incomplete; empty if it never was
        self.received_bytes = 0  # of states and logs: responses to heartbeats bring nothing new
        self.log_copies = {process.name: LogCopy(process) for process in members if process.copies_log}
        now = time.monotonic()
        self._members = {process.name: process for process in members}
        self._silent_since: dict[str, float] = dict.fromkeys(self._members, now)  # a process that is heard is not in it
        self._heard_at: float | None = None  # monotonic seconds; None until this command has sent something
        self._started_at: dict[str, float] = {}  # monotonic seconds, by process: from the age that its host reports
        self._states = states
        self._owner = identify_owner(members[0].log)
        self._renews_leases = renews_leases
        self._reported_problem = ""  # of the last heartbeat; empty if the host has recorded it
        self._received = b""  # an unfinished line
        self._unsent = b""
        self._piece_bytes = 0  # of the piece of a log that is still to come
        self._piece_copy: LogCopy | None = None  # where it is written; None: it is not wanted
        self._piece_name = ""

    @property
    def unended_names(self) -> list[str]:
        """The processes whose end is not known."""
        return [name for name in self._members if self._states[name].get("phase") not in ENDED_PHASES]

    @property
    def is_connected(self) -> bool:
        """Whether the host sends what happens there, or has sent everything.

        The first command counts as connected before its first output: a LogCopy waits for the first byte by itself.
        """
        if self.is_complete:
            return True
        if self._heard_at is None:
            return not self.is_lost
        return time.monotonic() - self._heard_at <= _MAX_UNHEARD_S

    @property
    def is_lost(self) -> bool:
        """Whether the command broke, and a new one has not sent anything since."""
        return self.broken_at is not None or (self._heard_at is None and bool(self.reason))

    def list_ages(self) -> list[float]:
        """Seconds since each process was started, as far as its host has reported it."""
        now = time.monotonic()
        return [now - started_at for started_at in self._started_at.values()]

    def is_observed(self, max_silence_s: float) -> bool:
        """Whether the states are current; a process that was not heard for `max_silence_s` is not waited for."""
        now = time.monotonic()
        return all(now - silent_since > max_silence_s for silent_since in self._silent_since.values())

    def open(self) -> IO[bytes]:
        """Start the command, the first time or again; returns its stdout. Raises HostError if it cannot start."""
        self.child = processes.start_stream(self.script.host, build_command(self.script, "watch"))
        assert self.child.stdout is not None
        assert self.child.stdin is not None
        self.stdout = self.child.stdout
        self.stderr = processes.StderrTail(self.child)
        os.set_blocking(self.child.stdin.fileno(), False)  # a connection that hangs must not block the watch
        self.broken_at = None
        self._heard_at = None
        self._received = b""
        self._unsent = b""
        self._piece_bytes = 0
        folders = {process.name: process.folder for process in self._members.values()}
        offsets = {name: copy.reopen() for name, copy in self.log_copies.items()}
        self._send({"processes": folders, "logs": offsets})
        return self.stdout

    def send_heartbeat(self) -> None:
        """Send a heartbeat with the owner's name, unless the connection does not take what was sent before."""
        if self._renews_leases and not self._unsent:
            self._send({"owner": self._owner})
        else:
            self._flush()

    def retry_copies(self) -> None:
        """Request again the logs whose copy could not be read or written for a while."""
        offsets = {name: copy.reopen() for name, copy in self.log_copies.items() if copy.is_retry_due}
        if offsets:
            self._send({"logs": offsets})

    def _send(self, request: dict[str, Any]) -> None:
        self._unsent += json.dumps(request).encode() + b"\n"
        self._flush()

    def _flush(self) -> None:
        """Write what the connection takes; its end is noticed by reading."""
        with contextlib.suppress(OSError, ValueError):
            assert self.child.stdin
            while self._unsent:
                self._unsent = self._unsent[os.write(self.child.stdin.fileno(), self._unsent) :]

    def handle_output(self, data: bytes) -> None:
        """Process a piece of the output; the last one is empty."""
        if data:
            self._heard_at = time.monotonic()
        self._received += data
        while self._received:
            if self._piece_bytes:
                self._write_piece()
                continue
            line, line_end, rest = self._received.partition(b"\n")
            if len(line) > MAX_LINE_BYTES:
                raise OSError(f"a line of more than {MAX_LINE_BYTES >> 10} KiB, where a state should be")
            if not line_end:
                return
            self._received = rest
            if self._handle_line(_parse_object(line)):
                self.received_bytes += len(line)

    def _write_piece(self) -> None:
        """Copy what has arrived of a piece of a log, or skip it if it is not wanted."""
        data = self._received[: self._piece_bytes]
        self.received_bytes += len(data)
        self._received = self._received[self._piece_bytes :]
        self._piece_bytes -= len(data)
        if self._piece_copy and not self._piece_copy.write(data):
            self._piece_copy = None
            self._send({"logs": {self._piece_name: None}})

    def _handle_line(self, line: dict[str, Any]) -> bool:
        """Handle a line; False if it is a response to a heartbeat, or not of the protocol."""
        if line.get("other_owner"):
            names = ", ".join(self._members)
            raise RunInUseError(f"{self.script.host}: {names}", str(line["other_owner"]))
        if line.get("site") is False:
            self._handle_absence(is_running=line.get("is_running") is True)
            return True
        if isinstance(line.get("ages"), dict):
            self._record_ages(line["ages"])
            self._handle_renewal(str(line.get("problem") or ""))
        name = line.get("process")
        if not isinstance(name, str) or name not in self._members:
            return False
        self._handle_process_line(name, line)
        return True

    def _handle_renewal(self, problem: str) -> None:
        """Handle that the host has recorded this owner or, for `problem`, has not, which is reported at a change."""
        if not problem:
            record_confirmation(self.script.host, self._owner)
        elif problem != self._reported_problem:
            get_log().warning("%s: %s", self.script.host, problem)
        self._reported_problem = problem

    def _handle_absence(self, *, is_running: bool) -> None:
        """Handle that the run's folder does not exist there. Its processes are absent only if none of them lives."""
        if is_running:
            for name in self._members:
                self._apply_state(name, {"phase": "running", "detail": FOLDER_REMOVED, "site": False})
            return
        for name in self._members:
            self._apply_state(name, {"phase": "absent", "site": False})
        for copy in self.log_copies.values():
            copy.is_complete = True

    def _handle_process_line(self, name: str, line: dict[str, Any]) -> None:
        """Handle a line about one process: its state, the start of a piece of its log, or the end of its log."""
        log_copy = self.log_copies.get(name)
        if isinstance(line.get("state"), dict):
            self._apply_state(name, _parse_state(line["state"]))
        elif "log" in line:
            size = line.get("size")
            if not isinstance(size, int) or not 0 < size <= _MAX_PIECE_BYTES:
                raise OSError("a piece of a log without a valid size")
            self._piece_bytes = size
            self._piece_name = name
            self._piece_copy = log_copy if log_copy and log_copy.expects(line["log"]) else None
        elif "log_end" in line and log_copy:
            log_copy.end(line["log_end"])

    def _record_ages(self, ages: Mapping[str, Any]) -> None:
        now = time.monotonic()
        for name in self._members:
            age_s = ages.get(name)
            if isinstance(age_s, float | int) and 0 <= age_s < _MAX_COUNT:
                self._started_at[name] = now - age_s

    def _apply_state(self, name: str, state: dict[str, Any]) -> None:
        """Store a new state. One with a `detail`, the reason why it is an old one, does not count as contact."""
        self._states[name] = state
        if state.get("detail"):
            self._silent_since.setdefault(name, time.monotonic())
        else:
            self._silent_since.pop(name, None)
        if name in self.log_copies and state.get("started"):  # its log exists even if it prints nothing
            with contextlib.suppress(OSError):
                self.log_copies[name].create()

    def end(self, error: OSError | None) -> None:
        """Handle the end of the output, or `error`: the stream is complete, or broken and started again later."""
        processes.close_stream(self.child, self.stderr, timeout_s=_EXIT_TIMEOUT_S)
        exit_code = self.child.returncode
        incomplete_copies = [copy for copy in self.log_copies.values() if not copy.is_complete]
        self.is_complete = exit_code == 0 and error is None and not incomplete_copies
        if error is not None:
            self.fail(str(error))
        elif exit_code == 0 and incomplete_copies:
            self.fail(incomplete_copies[0].reason or "the end of a log did not come")
        elif not self.is_complete:
            self.fail(processes.decode_last_line(self.stderr.tail) or f"exit code {exit_code}")

    def fail(self, reason: str) -> None:
        """Record that the command could not be started, or broke."""
        self.broken_at = time.monotonic()
        self._heard_at = None
        self.reason = reason
        for name in self.unended_names:
            self._silent_since.setdefault(name, self.broken_at)

    def close(self) -> None:
        """End the command, if it runs."""
        if hasattr(self, "stdout") and not self.stdout.closed:  # it may never have been opened
            processes.close_stream(self.child, self.stderr, timeout_s=0.0)


def _parse_object(line: bytes) -> dict[str, Any]:
    """A line as a JSON object, as a host may send anything; empty if it is not one (a shell's greeting)."""
    try:
        value = parse_json(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _parse_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """The valid values of a state."""
    return {key: value for key, value in state.items() if _is_valid_value(key, value)}


def _is_valid_value(key: str, value: Any) -> bool:
    """Whether a state may have the value; unknown keys are accepted as they are."""
    match key:
        case "phase" | "error" | "detail" | "name":
            return isinstance(value, str)
        case "exit" | "lost" | "lines" | "log_size":
            return value is None or (isinstance(value, int) and abs(value) < _MAX_COUNT)
        case "started" | "ended" | "abandoned":
            return value is None or (isinstance(value, float | int) and 0 <= value < _MAX_COUNT)  # not NaN either
        case _:
            return True
