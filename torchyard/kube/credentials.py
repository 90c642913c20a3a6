"""Credentials that expire: reloaded once for all threads whose requests were refused with them."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from torchyard.kube.retry import TransientError
from torchyard.model.errors import ClusterError

RELOAD_INTERVAL_S = 10.0  # between two reloads, if the new credentials are refused as well
_FAILED_RELOAD_INTERVAL_S = 1.0  # the same after a reload that failed: the file may be half written
T = TypeVar("T")


class Credentials(Generic[T]):
    """The credentials of a connection, in `current`, which every thread reads without a lock.

    A thread whose request is refused calls `renew` with the credentials that it used. The first such thread reloads
    them under `_lock`; the others wait for it and find `current` changed. Reloads are limited to one per
    `RELOAD_INTERVAL_S`, because a server that refuses valid credentials would otherwise cause one per request.
    """

    def __init__(self, first: T, load: Callable[[], T]) -> None:
        """`load` raises ClusterError, OSError or ValueError if there are no credentials."""
        self.current = first
        self._load = load
        self._lock = threading.Lock()  # guards all attributes that follow, and writes of `current`
        self._next_reload_at = 0.0  # monotonic seconds
        self._reload_error = ""  # of the last reload; empty if it succeeded

    def renew(self, used: T) -> bool:
        """Reload the credentials if `used` is the current one; return whether `current` differs from `used` now.

        Raises TransientError 401 if they cannot be loaded.
        """
        with self._lock:
            if self.current is not used:
                return True
            if time.monotonic() >= self._next_reload_at:
                self._reload()
            if self._reload_error:
                raise TransientError(f"the credentials cannot be reloaded: {self._reload_error}", 401)
            return self.current is not used

    def _reload(self) -> None:
        self._next_reload_at = time.monotonic() + RELOAD_INTERVAL_S
        self._reload_error = ""
        try:
            self.current = self._load()
        except (ClusterError, OSError, ValueError) as error:
            self._next_reload_at = time.monotonic() + _FAILED_RELOAD_INTERVAL_S
            self._reload_error = str(error)
