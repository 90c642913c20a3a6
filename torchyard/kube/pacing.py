"""Limits how often refused requests are sent again, over all requests of one kind together."""

import asyncio
import time
from collections.abc import Callable

_MAX_RATE = 50.0  # tries per second after successes
_MIN_RATE = 2.0  # tries per second while everything is refused
_REFUSAL_FACTOR = 0.8  # of the rate, for each refusal
_SUCCESS_FACTOR = 2.0  # of the rate, for each success
_CHECK_INTERVAL_S = 0.1  # between two looks at the rate, which may have changed


class RetryPacer:
    """Lets the tries that follow refusals pass one by one, at a rate that falls with refusals and rises with successes.

    So hundreds of clients of a server that is away cost it a few requests per second, and when it is back they all
    return within seconds. First tries do not wait. All methods are called on one event loop.
    """

    def __init__(self) -> None:
        self.recovered_at = -float("inf")  # monotonic seconds of the last success of a try after a refusal
        self._rate = _MAX_RATE
        self._passed_at = 0.0  # monotonic seconds
        self._turn = asyncio.Lock()  # serves those that wait in order

    def record_success(self, *, is_retry: bool) -> None:
        if is_retry:
            self.recovered_at = time.monotonic()
        self._rate = min(self._rate * _SUCCESS_FACTOR, _MAX_RATE)

    def record_refusal(self) -> None:
        self._rate = max(self._rate * _REFUSAL_FACTOR, _MIN_RATE)

    async def wait(self, is_needed: Callable[[], bool]) -> bool:
        """Wait for the next turn; return False as soon as the try is not needed any more."""
        async with self._turn:
            while is_needed():
                delay_s = self._passed_at + 1 / self._rate - time.monotonic()
                if delay_s <= 0:
                    self._passed_at = time.monotonic()
                    return True
                await asyncio.sleep(min(delay_s, _CHECK_INTERVAL_S))
        return False
