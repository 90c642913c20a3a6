"""Credentials that expire: reloaded once for all threads whose requests were refused with them."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from torchyard.kube.retry import TransientError
from torchyard.model.errors import ClusterError

_RELOAD_INTERVAL_S = 10.0  # between two reloads, if what was loaded is refused as well
T = TypeVar("T")


class Credentials(Generic[T]):
    """The current credentials, in `now`."""

    def __init__(self, first: T, load: Callable[[], T]) -> None:
        """`load` raises ClusterError, OSError or ValueError if there are none."""
        self.now, self._load = first, load
        self._one = threading.Lock()
        self._next, self._failed = 0.0, ""

    def renew(self, used: T) -> bool:
        """Whether `now` differs from the refused ones after a reload. TransientError 401 if they cannot be loaded."""
        with self._one:
            if self.now is not used:
                return True
            if time.monotonic() >= self._next:
                self._next, self._failed = time.monotonic() + _RELOAD_INTERVAL_S, ""
                try:
                    self.now = self._load()
                except (ClusterError, OSError, ValueError) as error:
                    self._next, self._failed = time.monotonic() + 1.0, str(error)
            if self._failed:
                raise TransientError(f"the credentials cannot be reloaded: {self._failed}", 401)
            return self.now is not used
