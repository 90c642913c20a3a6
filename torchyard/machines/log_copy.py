"""A copy of a log that grows on another host."""

import errno
import time
from pathlib import Path

from torchyard.common.private_files import make_private_folder, open_private_file
from torchyard.model.plan import Process

_RETRY_DELAY_S = 1.0  # after the copy could not be written
_FIRST_BYTE_TIMEOUT_S = 45.0  # seconds that a copy without a byte may still be connecting: ssh gives up sooner


class LogCopy:
    """A copy of a process's log, byte by byte.

    The size of the copy is the byte from which the log is requested: nothing is transferred twice, and a line that was
    cut off is continued. A copy that was removed starts again at the first byte.

    Order of calls: `reopen` returns the byte to request; then `write` with each piece that starts at the byte given to
    `expects`, and `end` with the size of the complete log. After a `reopen` or a `write` that failed, `expects` is
    False until `is_retry_due`, when `reopen` starts again. No error of the disk is raised, except by `create`.

    reason: why the copy could not be read or written; empty if it could.
    """

    def __init__(self, process: Process) -> None:
        self.is_complete = False
        self.reason = ""
        self._path = Path(process.log)
        self._size = 0  # bytes of the copy
        self._opened_size = 0  # bytes of the copy when the log was requested
        self._opened_at: float | None = None  # monotonic seconds
        self._failed_at: float | None = None  # monotonic seconds; None while the copy can be written

    @property
    def is_retry_due(self) -> bool:
        """Whether a failed copy should be tried again."""
        return self._failed_at is not None and time.monotonic() - self._failed_at > _RETRY_DELAY_S

    def reopen(self) -> int | None:
        """The byte from which the log is to be requested; None, for `reason`, if the copy's size cannot be read."""
        try:
            self._size = self._path.stat().st_size
        except FileNotFoundError:
            self._size = 0
        except OSError as error:
            self._record_failure(error)
            return None
        self._opened_size = self._size
        self._opened_at = time.monotonic()
        self._failed_at = None
        self.reason = ""
        return self._size

    def create(self) -> None:
        """Create the file, if it does not exist: a process that prints nothing has a log. Raises OSError."""
        append_bytes(self._path, b"")

    def expects(self, offset: object) -> bool:
        """Whether a piece of the log from this byte on is the next one; False for what an earlier request has sent."""
        return self._failed_at is None and offset == self._size

    def write(self, data: bytes) -> bool:
        """Write the next piece; False if that failed, for `reason`: the disk is full, or the copy was removed."""
        try:
            if self._size and not self._path.exists():
                raise FileNotFoundError(errno.ENOENT, "the copy was removed", str(self._path))
            append_bytes(self._path, data)
        except OSError as error:
            self._record_failure(error)
            return False
        self._size += len(data)
        return True

    def _record_failure(self, error: OSError) -> None:
        self._failed_at = time.monotonic()
        self.reason = str(error)

    def end(self, offset: object) -> None:
        """The log ends at this byte: the copy is complete if it has all of it."""
        if self.expects(offset):
            self.is_complete = True

    def is_behind(self, log_size: object) -> bool:
        """Whether output is still on its way: up to byte `log_size` of the log, as the host reported it.

        A copy that cannot be read or written may lack lines. If the host reports no size, only the first byte is waited
        for, up to `_FIRST_BYTE_TIMEOUT_S`.
        """
        if self._failed_at is not None:
            return True
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
