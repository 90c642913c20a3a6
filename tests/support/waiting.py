"""Waiting for a condition, for as long as a busy machine may need."""

import time
from collections.abc import Callable
from typing import Any

TIMEOUT_S = 120.0
_LONGEST_PAUSE_S = 0.25


def wait_until(condition: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> Any:
    """The first result that is true; AssertionError after `timeout_s`.

    The pauses grow with the time waited: a condition that holds soon is seen at once, and one that takes long costs
    little.
    """
    started_at = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        waited_s = time.monotonic() - started_at
        assert waited_s < timeout_s, f"the condition did not hold within {timeout_s:g} s"
        time.sleep(min(0.01 + waited_s / 20, _LONGEST_PAUSE_S))
