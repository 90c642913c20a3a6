"""End a process whose lease is no longer renewed. Standard library only, Python 3.8 or newer."""

from __future__ import annotations

import os
import signal
import time

from torchyard.host.log import ProcessLog
from torchyard.host.processes import send_signal
from torchyard.host.staging import HEARTBEAT_FILE
from torchyard.host.state import Json, file_path, try_write_state


def heartbeat_path(folder: str) -> str:
    """The file that each heartbeat touches: beside the process's folder, one for the whole attempt."""
    return file_path(os.path.dirname(os.path.abspath(folder)), HEARTBEAT_FILE)


class ProcessLease:
    """Ends a process whose lease no launcher has renewed for `seconds`.

    Only changes of the heartbeat file count, and the time between them by the kernel's monotonic clock: setting the
    clock or suspending the host ends nothing.
    """

    def __init__(self, folder: str, spec: Json) -> None:
        self.folder, self.heartbeat_file = folder, heartbeat_path(folder)
        self.lease_s, self.grace_s = spec.get("lease", float("inf")), spec.get("grace", 10.0)
        self.heartbeat_mtime_ns, self.renewed_at, self.ended_at = self.read_heartbeat_mtime(), time.monotonic(), 0.0

    @property
    def check_interval_s(self) -> float:
        """Seconds until the next check."""
        return 0.2 if self.ended_at else max(0.05, min(60.0, self.lease_s / 10))

    def read_heartbeat_mtime(self) -> int:
        """The mtime of the heartbeat file, 0 if it cannot be read; only a change of it counts."""
        try:
            return os.stat(self.heartbeat_file).st_mtime_ns
        except OSError:
            return 0

    def enforce(self, agent_pid: int, log: ProcessLog) -> None:
        """Send SIGTERM to the process once the lease has ended, and SIGKILL after the grace."""
        mtime_ns, now = self.read_heartbeat_mtime(), time.monotonic()
        if mtime_ns != self.heartbeat_mtime_ns:
            self.heartbeat_mtime_ns, self.renewed_at = mtime_ns, now
        if self.ended_at and now - self.ended_at > self.grace_s:
            send_signal([agent_pid], signal.SIGKILL)
        elif not self.ended_at and now - self.renewed_at > self.lease_s:
            self.ended_at = now
            try_write_state(self.folder, abandoned=self.lease_s)
            message = "ended by its supervisor: its lease was not renewed for %g s (deadlines.lease)"
            log.write_lines([(message % self.lease_s).encode()])
            send_signal([agent_pid], signal.SIGTERM)
