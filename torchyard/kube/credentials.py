"""Credentials that are refused one day: loaded anew, once for all threads that were refused with them."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from torchyard.kube.retry import TransientError
from torchyard.model.errors import ClusterError

_RELOAD_INTERVAL_S = 10.0  # seconds before what was loaded anew, and refused as well, is loaded once more
T = TypeVar("T")


class Credentials(Generic[T]):
    """What requests are made with, as it is `now`."""

    def __init__(self, first: T, load: Callable[[], T]) -> None:
        """`load` raises ClusterError, OSError or ValueError where there are none."""
        self.now, self._load = first, load
        self._one = threading.Lock()
        self._next, self._failed = 0.0, ""

    def renew(self, used: T) -> bool:
        """Whether there are others than the refused ones by now. TransientError 401 where they cannot be loaded."""
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
                raise TransientError(f"the credentials cannot be loaded anew: {self._failed}", 401)
            return self.now is not used
