"""Keeps a thread that polls to a share of a processor."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

_MAX_POLL_SHARE = 0.02  # of a processor, for polls while changes come without a pause
MAX_SLEEP_S = 0.5  # Prefect ends a run by an exception in this thread, which a longer sleep would delay


class PollPacer:
    """Delay each poll by what the one before has cost, so that polls take at most `_MAX_POLL_SHARE` of a processor.

    The changes of a large job come one by one, and each poll looks at all pods: changes that come during the delay are
    read together. The delay is at most `MAX_SLEEP_S`.
    """

    def __init__(self) -> None:
        self._cost_s = 0.0  # of the last poll, in seconds of a processor

    @contextmanager
    def pace(self, *, is_urgent: bool = False) -> Iterator[None]:
        """Wait until the next poll may begin, at once if it is urgent, and measure the block, which is the poll."""
        if not is_urgent:
            time.sleep(min(self._cost_s / _MAX_POLL_SHARE, MAX_SLEEP_S))
        started_at = time.thread_time()
        try:
            yield
        finally:
            self._cost_s = time.thread_time() - started_at
