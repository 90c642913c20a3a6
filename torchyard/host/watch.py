"""Send the states and logs of all processes on one host to the launcher. Standard library only, Python 3.8 or newer.

The launcher starts one such command for a host and reads its stdout; while it runs, the launcher writes to its stdin.
Both directions are lines of JSON, except the bytes of a log, which follow their line:

    to the launcher    {"process": NAME, "state": {...}}          at every change
                       {"process": NAME, "log": OFFSET, "size": SIZE}, then SIZE bytes of its log from OFFSET on
                       {"process": NAME, "log_end": OFFSET}       the log ends at that byte, and is complete
                       {"ages": {NAME: SECONDS}, "problem": TEXT}    the response to a heartbeat: since when processes
                                                                  run, and why the owner was not recorded, or empty
                       {"other_owner": OWNER}                     another launcher owns the run
    from the launcher  {"processes": {NAME: FOLDER}, "logs": {NAME: OFFSET}}    the first line, with all logs to copy
                       {"owner": OWNER}                           a heartbeat, which renews the lease
                       {"logs": {NAME: OFFSET}}                   send this log again from there; null: send none of it

The size of the launcher's copy is the offset: a log continues there after any break. Without responses to its
heartbeats the launcher does not observe the job, even if its connection looks open.
"""

from __future__ import annotations

import json
import os
import select
import time
from typing import Any, Callable, NamedTuple

Json = Any
POLL_INTERVAL_S = 0.05  # between two looks for new lines or a new state
_RETRY_INTERVAL_S = 1.0  # after files of a process could not be read: each read of a bad disk may take long
_CHUNK_BYTES = 1 << 16  # of one log before the other processes have their turn
_MAX_UNSENT_BYTES = 1 << 18  # a slow connection holds up the logs, but neither states nor heartbeats


class Launcher:
    """The launcher at the other end of stdin and stdout. No call blocks, except `wait` for its timeout.

    `has_left` is True once the launcher has closed the connection.
    """

    def __init__(self, input_fd: int = 0, output_fd: int = 1) -> None:
        self.has_left = False
        self._input_fd = input_fd
        self._output_fd = output_fd
        self._received = b""  # an unfinished line
        self._unsent = b""
        for fd in (input_fd, output_fd):
            os.set_blocking(fd, False)

    @property
    def has_room(self) -> bool:
        """Whether the bytes of a log can be sent without holding up what is more important."""
        return len(self._unsent) < _MAX_UNSENT_BYTES

    def send(self, header: Json, data: bytes = b"") -> None:
        """Send a line, and bytes after it; what the connection does not take now is sent by `wait`."""
        self._unsent += json.dumps(header).encode() + b"\n" + data
        self._flush()

    def wait(self, timeout_s: float) -> list[Json]:
        """Wait for lines of the launcher, up to `timeout_s` seconds, and return them; send what is unsent meanwhile."""
        poller = select.poll()  # select() fails for descriptors from 1024 on
        poller.register(self._input_fd, select.POLLIN)
        if self._unsent:
            poller.register(self._output_fd, select.POLLOUT)
        ready_fds = {fd for fd, _ in poller.poll(timeout_s * 1000)}
        if self._output_fd in ready_fds:
            self._flush()
        if self._input_fd not in ready_fds:
            return []
        try:
            data = os.read(self._input_fd, 1 << 16)
        except BlockingIOError:
            return []
        except ConnectionResetError:  # the launcher left before it had read everything
            data = b""
        if not data:
            self.has_left = True
        *lines, self._received = (self._received + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def drain(self) -> None:
        """Wait until everything is sent, or the launcher has left."""
        while self._unsent and not self.has_left:
            self.wait(1.0)

    def _flush(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._output_fd, self._unsent) :]
        except BlockingIOError:
            return
        except (BrokenPipeError, ConnectionResetError):
            self.has_left = True
            self._unsent = b""


class Renewal(NamedTuple):
    """What came of a heartbeat.

    other_owner: the name of another owner of the run; empty if there is none.
    problem: why the owner was not recorded, and whose lease could not be renewed otherwise; empty if it was recorded.
    """

    other_owner: str
    problem: str


class WatchedProcess:
    """A process whose state and log are sent.

    read_state: its state; the log is complete at the size that it has after a call that returns an ended state.
    is_ended: whether nothing more is written to the log after this state.
    measure_age: seconds since it was started, by a clock of this host that is never set; None if that is not known.
    log_path: the log's file, which may not exist.

    While its state or its log cannot be read (OSError), the state that is sent has the reason as its `detail`. Neither
    the other processes nor the heartbeats depend on it.
    """

    def __init__(
        self,
        log_path: str,
        read_state: Callable[[], Json],
        is_ended: Callable[[Json], bool],
        measure_age: Callable[[Json], float | None],
    ) -> None:
        self.log_path = log_path
        self.read_state = read_state
        self.is_ended = is_ended
        self.measure_age = measure_age
        self._sent_state: Json = {}
        self._retry_at = float("-inf")  # monotonic seconds, after a read that failed
        self._has_ended = False
        self._has_sent_end = False
        self._is_log_wanted = False
        self._offset: int | None = None  # of the next byte to send; None: nothing is sent until the next request

    @property
    def is_finished(self) -> bool:
        """Whether its end and, if the launcher copies it, the end of its log have been sent."""
        return self._has_ended and (self._has_sent_end or not self._is_log_wanted)

    @property
    def age_s(self) -> float | None:
        """Seconds since it was started; None if that is not known, or no state was read yet."""
        return self.measure_age(self._sent_state) if self._sent_state else None

    def request_log(self, offset: int | None) -> None:
        """Send the log from a byte on; None sends nothing until the next request, for which the watch waits."""
        self._is_log_wanted = True
        self._offset = offset
        self._has_sent_end = False

    def send_changes(self, name: str, launcher: Launcher) -> bool:
        """Send a changed state and a piece of the log; True if more of the log is available."""
        if time.monotonic() < self._retry_at:
            return False
        state = self._sent_state
        try:
            state = self.read_state()
            data = self._read_log(launcher)
        except OSError as error:
            self._retry_at = time.monotonic() + _RETRY_INTERVAL_S
            self._send_state(name, dict(state, detail="its files cannot be read: %s" % error), launcher)
            return False
        self._send_state(name, state, launcher)
        self._has_ended = self.is_ended(state)
        if data is None or self._offset is None:
            return False
        if data:
            launcher.send({"process": name, "log": self._offset, "size": len(data)}, data)
            self._offset += len(data)
        elif self._has_ended:
            launcher.send({"process": name, "log_end": self._offset})
            self._has_sent_end = True
        return len(data) == _CHUNK_BYTES

    def _read_log(self, launcher: Launcher) -> bytes | None:
        """The next piece of the log, empty at its end; None if none is to be sent now. OSError."""
        if self._offset is None or self._has_sent_end or not launcher.has_room:
            return None
        return _read_bytes(self.log_path, self._offset)

    def _send_state(self, name: str, state: Json, launcher: Launcher) -> None:
        """Send the state, if it has changed."""
        if state != self._sent_state:
            launcher.send({"process": name, "state": state})
            self._sent_state = state


def _read_bytes(path: str, offset: int) -> bytes:
    """Up to `_CHUNK_BYTES` of a file; empty at its end, or if it does not exist."""
    try:
        if os.stat(path).st_size <= offset:
            return b""
        with open(path, "rb", buffering=0) as file:
            file.seek(offset)
            return file.read(_CHUNK_BYTES)
    except FileNotFoundError:
        return b""


def read_request(launcher: Launcher) -> tuple[dict[str, str], dict[str, int | None]]:
    """The folders of the processes to watch, and the byte from which each log is wanted; empty if the launcher left.

    None in place of a byte: the log is wanted, but not yet.
    """
    while not launcher.has_left:
        for line in launcher.wait(60.0):
            return line["processes"], line["logs"]
    return {}, {}


def watch_processes(
    launcher: Launcher,
    processes: dict[str, WatchedProcess],
    renew_leases: Callable[[str], Renewal],
    poll_interval_s: float = POLL_INTERVAL_S,
) -> bool:
    """Send all changes until every process has ended and every log is sent; False if the launcher left before that.

    `renew_leases` is called with the owner's name at each heartbeat.
    """
    while True:
        started_at = time.monotonic()
        has_more = False
        for name, process in processes.items():
            if process.send_changes(name, launcher):
                has_more = True
        if all(process.is_finished for process in processes.values()):
            launcher.drain()
            return not launcher.has_left
        pause_s = poll_interval_s - (time.monotonic() - started_at)
        for line in launcher.wait(0.0 if has_more and launcher.has_room else max(0.0, pause_s)):
            for name, offset in line.get("logs", {}).items():
                processes[name].request_log(offset)
            if "owner" in line:
                renewal = renew_leases(line["owner"])
                if renewal.other_owner:
                    launcher.send({"other_owner": renewal.other_owner})
                ages = {name: process.age_s for name, process in processes.items()}
                known_ages = {name: age_s for name, age_s in ages.items() if age_s is not None}
                launcher.send({"ages": known_ages, "problem": renewal.problem})
        if launcher.has_left:
            return False
