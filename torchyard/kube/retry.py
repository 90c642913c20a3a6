"""The one retry policy for requests: which are sent again, for how long, and the pauses between two tries."""

import contextlib
import random
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential

REQUEST_TIMEOUT_S = 30.0  # how long a request is repeated while the API server is away or busy
BRIEF_TIMEOUT_S = 3.0  # the same for a ping, for discovery, and for errors that a dry run is meant to find
_MAX_RETRY_AFTER_S = 30.0  # the longest pause that a server may request
_FIRST_DELAY_S = 0.2  # the longest pause before the second try; the ones after it grow
_MAX_DELAY_S = 5.0  # between two tries of a request
_JITTERED_WAIT = wait_random_exponential(_FIRST_DELAY_S, _MAX_DELAY_S)
T = TypeVar("T")


class TransientError(Exception):
    """The API server did not respond (`status` 0), or requests a retry, after at least `retry_after_s` seconds.

    `timeout_s`: how long repeating this request is worthwhile; None if the caller's own timeout applies.
    """

    def __init__(
        self, message: str, status: int = 0, retry_after_s: float = 0.0, timeout_s: float | None = None
    ) -> None:
        super().__init__(message, status, retry_after_s, timeout_s)
        self.message = message
        self.status = status
        self.retry_after_s = retry_after_s
        self.timeout_s = timeout_s

    def __str__(self) -> str:
        return self.message


class UnprovenNotFoundError(TransientError):
    """A 404 that reports no absence: something else has answered, or the API server does not serve the kind."""


def retry_request(send: Callable[[], T], timeout_s: float | None = None) -> T:
    """Return the result of `send`, which is repeated while it raises TransientError.

    It is called at least twice, and for `timeout_s` seconds (None: `REQUEST_TIMEOUT_S`). Raises its last error.
    """
    retrying = Retrying(
        retry=retry_if_exception_type(TransientError),
        wait=lambda state: max(_JITTERED_WAIT(state), _get_last_error(state).retry_after_s),
        stop=lambda state: _is_given_up(state, timeout_s or REQUEST_TIMEOUT_S),
        reraise=True,
    )
    return retrying(send)


def _is_given_up(state: RetryCallState, timeout_s: float) -> bool:
    elapsed_s = state.seconds_since_start or 0.0
    return state.attempt_number >= 2 and elapsed_s >= (_get_last_error(state).timeout_s or timeout_s)


def _get_last_error(state: RetryCallState) -> TransientError:
    """The error of the last try; an empty one if that did not fail."""
    error = state.outcome.exception() if state.outcome else None
    return error if isinstance(error, TransientError) else TransientError("")


class Backoff:
    """Growing pauses between the tries of a stream, with jitter, so that the clients of a server return one by one."""

    def __init__(self) -> None:
        self._tries = 0

    def reset(self) -> None:
        """Start again with the shortest pause: a try has succeeded."""
        self._tries = 0

    def next(self, max_delay_s: float, min_delay_s: float = 0.0) -> float:
        """Seconds to wait before the next try.

        A pause is about half as long as all pauses before it together: the end of a short outage is noticed soon.
        """
        pause_s = min(max_delay_s, _FIRST_DELAY_S * 1.5 ** min(self._tries, 50)) * random.uniform(0.5, 1.0)
        self._tries += 1
        return max(pause_s, min_delay_s)


def parse_retry_after(header: str | None) -> float:
    """The seconds that a Retry-After header (a number, or a date) requests, bounded; 0 if it cannot be parsed."""
    if not header:
        return 0.0
    seconds = 0.0
    with contextlib.suppress(ValueError, OverflowError):
        is_number = header.strip().isdigit()
        seconds = float(header) if is_number else parsedate_to_datetime(header).timestamp() - time.time()
    return min(max(seconds, 0.0), _MAX_RETRY_AFTER_S)
