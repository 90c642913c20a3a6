"""End a process whose lease is no longer renewed. Standard library only, Python 3.8 or newer."""

from __future__ import annotations

import os
import signal
import time

from torchyard.host.log import ProcessLog
from torchyard.host.processes import identify_process, send_signal
from torchyard.host.staging import HEARTBEAT_FILE
from torchyard.host.state import Json, ask_to_end, file_path, try_write_state

HEARTBEAT_SIGNAL = signal.SIGHUP  # a supervisor in its own session gets it from no terminal
_DEFAULT_GRACE_S = 10.0
_ENDING_CHECK_INTERVAL_S = 0.2  # once SIGTERM was sent
_MAX_COUNTED_INTERVALS = 2  # of the time between two checks: a supervisor that is late by more was stopped
# After that a living launcher has time to open its connection again and to send a heartbeat. A longer time would let
# the process run beside the attempt that a launcher may have started when the lease was over.
_RECONNECTION_S = 60.0


def heartbeat_path(folder: str) -> str:
    """The file that each heartbeat touches: beside the process's folder, one for the whole attempt."""
    return file_path(os.path.dirname(os.path.abspath(folder)), HEARTBEAT_FILE)


class ProcessLease:
    """End a process whose lease no launcher has renewed for `lease_s` seconds.

    A heartbeat is a change of the heartbeat file's mtime. Its value does not matter, and the time since the last change
    is measured by the kernel's monotonic clock: setting the host's clock or suspending the host ends nothing. A file
    that cannot be read counts as unchanged. Without `lease` in the spec the lease never expires. Where the file cannot
    be written, the supervisor gets each heartbeat as HEARTBEAT_SIGNAL instead, and calls `renew`.

    Only the time in which a heartbeat could have been seen counts: not that in which the supervisor was frozen with its
    container or its virtual machine, or could not write its log, when no heartbeat could come either. After such a time
    at most `_RECONNECTION_S` of the lease are left.

    The supervisor calls `enforce` at least every `check_interval_s` seconds. Once the lease has expired, `enforce`
    records that in the state (`abandoned`) and in the log, sends SIGTERM, and SIGKILL after `grace_s` seconds. A
    later heartbeat does not take that back. Neither a failed write nor a process that has ended raises an error.
    """

    def __init__(self, folder: str, spec: Json) -> None:
        self.folder = folder
        self.heartbeat_file = heartbeat_path(folder)
        self.lease_s: float = spec.get("lease", float("inf"))
        self.grace_s: float = spec.get("grace", _DEFAULT_GRACE_S)
        self.heartbeat_mtime_ns = self.read_heartbeat_mtime()
        self.has_expired = False
        self._checked_at = time.monotonic()
        self._waited_s = 0.0  # observed seconds since the last heartbeat or, once the lease has expired, since SIGTERM

    @property
    def check_interval_s(self) -> float:
        """Seconds until the next check."""
        if self.has_expired:
            return _ENDING_CHECK_INTERVAL_S
        return max(0.05, min(60.0, self.lease_s / 10))

    def read_heartbeat_mtime(self) -> int | None:
        """The mtime of the heartbeat file in nanoseconds; None if it cannot be read."""
        try:
            return os.stat(self.heartbeat_file).st_mtime_ns
        except OSError:
            return None

    def enforce(self, agent_pid: int, log: ProcessLog) -> None:
        """Send SIGTERM to the process once the lease has expired, and SIGKILL after the grace."""
        now = time.monotonic()
        elapsed_s = now - self._checked_at
        self._checked_at = now
        observed_s = min(elapsed_s, _MAX_COUNTED_INTERVALS * self.check_interval_s)
        limit_s = self.grace_s if self.has_expired else self.lease_s
        last_chance_s = limit_s - _RECONNECTION_S
        self._waited_s = max(self._waited_s + observed_s, min(self._waited_s + elapsed_s, last_chance_s))
        mtime_ns = self.read_heartbeat_mtime()
        if mtime_ns is not None and mtime_ns != self.heartbeat_mtime_ns:
            self.heartbeat_mtime_ns = mtime_ns
            self.renew()
        if self.has_expired:
            if self._waited_s > self.grace_s:
                send_signal([agent_pid], signal.SIGKILL)
        elif self._waited_s > self.lease_s:
            self.has_expired = True
            self._waited_s = 0.0
            try_write_state(self.folder, abandoned=self.lease_s)
            message = "ended by its supervisor: its lease was not renewed for %g s (deadlines.lease)"
            log.write_lines([(message % self.lease_s).encode()])
            ask_to_end(self.folder, identify_process(agent_pid))

    def renew(self) -> None:
        """Count from now on, unless the lease has expired."""
        if not self.has_expired:
            self._waited_s = 0.0
