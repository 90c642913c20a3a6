"""How long a process lives on that nobody looks after. Standard library only, Python 3.8 or newer."""

from __future__ import annotations

import os
import signal
import time

from torchyard.host.log import ProcessLog
from torchyard.host.processes import send_signal
from torchyard.host.staging import HEARTBEAT_FILE
from torchyard.host.state import Json, file_path, note_state


def heartbeat_path(folder: str) -> str:
    """The file that is touched while somebody looks after a process: beside its folder, one for the whole attempt."""
    return file_path(os.path.dirname(os.path.abspath(folder)), HEARTBEAT_FILE)


class ProcessLease:
    """Ends a process that nobody has looked after for `seconds`.

    Only the file's changes count, and the time between them as the kernel counts it: no clock that is set, and no host
    that was suspended, ends anything.
    """

    def __init__(self, folder: str, spec: Json) -> None:
        self.folder, self.file = folder, heartbeat_path(folder)
        self.seconds, self.grace = spec.get("lease", float("inf")), spec.get("grace", 10.0)
        self.mark, self.heard, self.ended = self.touched(), time.monotonic(), 0.0

    @property
    def pause(self) -> float:
        """Seconds until it has to be looked at again."""
        return 0.2 if self.ended else max(0.05, min(60.0, self.seconds / 10))

    def touched(self) -> int:
        """When somebody looked last, as the disk has it; only a change of it means anything."""
        try:
            return os.stat(self.file).st_mtime_ns
        except OSError:
            return 0

    def enforce(self, agent: int, log: ProcessLog) -> None:
        """Ask a living process to end once the lease is over, and kill it after the grace."""
        mark, now = self.touched(), time.monotonic()
        if mark != self.mark:
            self.mark, self.heard = mark, now
        if self.ended and now - self.ended > self.grace:
            send_signal([agent], signal.SIGKILL)
        elif not self.ended and now - self.heard > self.seconds:
            self.ended = now
            note_state(self.folder, abandoned=self.seconds)
            said = "ended by its keeper: nobody has looked after it for %g s (deadlines.lease)"
            log.write([(said % self.seconds).encode()])
            send_signal([agent], signal.SIGTERM)
