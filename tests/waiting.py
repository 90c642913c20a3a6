"""Waiting for what a test expects, for as long as a busy machine may need."""

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 30.0


def until(found: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """The first result that is true; fails after `patience_s`."""
    deadline = time.monotonic() + patience_s
    while not (something := found()):
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)
    return something
