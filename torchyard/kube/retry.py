"""The one retry policy for requests: what may be sent again, for how long, and the pauses between two tries."""

import contextlib
import random
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential

_REQUEST_TIMEOUT_S = 30.0  # how long a request is repeated while the API server is away or busy
BRIEF_TIMEOUT_S = 3.0  # the same for a ping, for discovery, and for what a dry run is meant to find
_MAX_RETRY_AFTER_S = 30.0  # the longest pause that a server may ask for
_FIRST_DELAY_S = 0.2  # the longest pause before the second try; the ones after it grow
_MAX_DELAY_S = 5.0  # between two tries of a request
_JITTERED_WAIT = wait_random_exponential(_FIRST_DELAY_S, _MAX_DELAY_S)
T = TypeVar("T")


class TransientError(Exception):
    """The API server did not answer (`status` 0), or asks to be asked again after `after` seconds.

    `timeout_s`: how long repeating this request is worthwhile, where it differs from the caller's own timeout.
    """

    def __init__(self, said: str, status: int = 0, after: float = 0.0, timeout_s: float | None = None) -> None:
        super().__init__(said, status, after, timeout_s)
        self.said, self.status, self.after, self.timeout_s = said, status, after, timeout_s

    def __str__(self) -> str:
        return self.said


def retry_request(send: Callable[[], T], timeout_s: float | None = None) -> T:
    """The answer of `send`, which is repeated while it raises TransientError: at least twice, for `timeout_s`."""
    retrying = Retrying(
        retry=retry_if_exception_type(TransientError),
        wait=lambda state: max(_JITTERED_WAIT(state), _last_error(state).after),
        stop=lambda state: _is_given_up(state, timeout_s or _REQUEST_TIMEOUT_S),
        reraise=True,
    )
    return retrying(send)


def _is_given_up(state: RetryCallState, timeout_s: float) -> bool:
    elapsed_s = state.seconds_since_start or 0.0
    return state.attempt_number >= 2 and elapsed_s >= (_last_error(state).timeout_s or timeout_s)


def _last_error(state: RetryCallState) -> TransientError:
    """Why the last try failed."""
    error = state.outcome.exception() if state.outcome else None
    return error if isinstance(error, TransientError) else TransientError("")


class Backoff:
    """Growing pauses between the tries of a stream, with jitter: many clients of one server must not return at once."""

    def __init__(self) -> None:
        self._tries = 0

    def reset(self) -> None:
        self._tries = 0

    def next(self, most: float, least: float = 0.0) -> float:
        """Seconds until the next try: about half as long as all before it together, so an outage's end is seen soon."""
        pause = min(most, _FIRST_DELAY_S * 1.5 ** min(self._tries, 50)) * random.uniform(0.5, 1.0)
        self._tries += 1
        return max(pause, least)


def read_retry_after(header: str | None) -> float:
    """The seconds that a Retry-After header asks for, bounded: a number, or a date; 0 where it cannot be read."""
    if not header:
        return 0.0
    seconds = 0.0
    with contextlib.suppress(ValueError, OverflowError):
        number = header.strip().isdigit()
        seconds = float(header) if number else parsedate_to_datetime(header).timestamp() - time.time()
    return min(max(seconds, 0.0), _MAX_RETRY_AFTER_S)
