"""Waiting for what a test expects, for as long as a busy machine may need."""

import time
from collections.abc import Callable
from typing import Any

TIMEOUT_S = 30.0


def wait_until(condition: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> Any:
    """The first result that is true; fails after `patience_s`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)
    return value
