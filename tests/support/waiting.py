"""Waiting for a condition, for as long as a busy machine may need."""

import time
from collections.abc import Callable
from typing import Any

TIMEOUT_S = 30.0


def wait_until(condition: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> Any:
    """The first result that is true; AssertionError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"the condition did not hold within {timeout_s:g} s"
        time.sleep(0.01)
