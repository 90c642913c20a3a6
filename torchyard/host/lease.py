"""End a process whose lease is no longer renewed. Standard library only, Python 3.8 or newer."""

from __future__ import annotations

import os
import signal
import time

from torchyard.host.log import ProcessLog
from torchyard.host.processes import send_signal
from torchyard.host.staging import HEARTBEAT_FILE
from torchyard.host.state import Json, file_path, note_state


def heartbeat_path(folder: str) -> str:
    """The file that each heartbeat touches: beside the process's folder, one for the whole attempt."""
    return file_path(os.path.dirname(os.path.abspath(folder)), HEARTBEAT_FILE)


class ProcessLease:
    """Ends a process whose lease no launcher has renewed for `seconds`.

    Only changes of the heartbeat file count, and the time between them by the kernel's monotonic clock: setting the
    clock or suspending the host ends nothing.
    """

    def __init__(self, folder: str, spec: Json) -> None:
        self.folder, self.file = folder, heartbeat_path(folder)
        self.seconds, self.grace = spec.get("lease", float("inf")), spec.get("grace", 10.0)
        self.mark, self.heard, self.ended = self.read_heartbeat(), time.monotonic(), 0.0

    @property
    def pause(self) -> float:
        """Seconds until the next check."""
        return 0.2 if self.ended else max(0.05, min(60.0, self.seconds / 10))

    def read_heartbeat(self) -> int:
        """The mtime of the heartbeat file, 0 if it cannot be read; only a change of it counts."""
        try:
            return os.stat(self.file).st_mtime_ns
        except OSError:
            return 0

    def enforce(self, agent: int, log: ProcessLog) -> None:
        """Send SIGTERM to the process once the lease has ended, and SIGKILL after the grace."""
        mark, now = self.read_heartbeat(), time.monotonic()
        if mark != self.mark:
            self.mark, self.heard = mark, now
        if self.ended and now - self.ended > self.grace:
            send_signal([agent], signal.SIGKILL)
        elif not self.ended and now - self.heard > self.seconds:
            self.ended = now
            note_state(self.folder, abandoned=self.seconds)
            said = "ended by its supervisor: its lease was not renewed for %g s (deadlines.lease)"
            log.write([(said % self.seconds).encode()])
            send_signal([agent], signal.SIGTERM)
