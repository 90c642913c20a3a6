"""How long a request is repeated while the API server is away or busy, and how long is waited in between."""

import contextlib
import random
import time
from email.utils import parsedate_to_datetime

from tenacity import RetryCallState, retry, retry_if_exception_type, wait_random_exponential

_RETRY_TIMEOUT_S = 30.0  # seconds
BRIEF_TIMEOUT_S = 3.0  # the same, for a first knock, and for what a dry run is there to find
_MAX_RETRY_AFTER_S = 30.0  # seconds that a server may ask for before it is asked again
_FIRST_DELAY_S = 0.2  # seconds before a second try; each pause after it may be half as long again
_JITTERED_WAIT = wait_random_exponential(_FIRST_DELAY_S, 5)


class TransientError(Exception):
    """The API server did not answer (`status` 0), or asked to come back later, `after` so many seconds.

    `patience`: for how many seconds it is worth to ask again, where that is not PATIENCE.
    """

    def __init__(self, said: str, status: int = 0, after: float = 0.0, patience: float | None = None) -> None:
        super().__init__(said, status, after, patience)
        self.said, self.status, self.after, self.patience = said, status, after, patience

    def __str__(self) -> str:
        return self.said


class Backoff:
    """Longer and longer pauses between tries, no two alike: who waits for one server does not come back at once."""

    def __init__(self) -> None:
        self._tries = 0

    def reset(self) -> None:
        self._tries = 0

    def next(self, most: float, least: float = 0.0) -> float:
        """Seconds; about half as long as everything before it, so that an end of the outage is soon seen."""
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


def _choose_delay(state: RetryCallState) -> float:
    return max(_JITTERED_WAIT(state), _last_error(state).after)


def _is_given_up(state: RetryCallState) -> bool:
    """Whether it was tried long enough, and twice at least."""
    return state.attempt_number >= 2 and (state.seconds_since_start or 0.0) >= (
        _last_error(state).patience or _RETRY_TIMEOUT_S
    )


def _last_error(state: RetryCallState) -> TransientError:
    """Why the last try failed."""
    error = state.outcome.exception() if state.outcome else None
    return error if isinstance(error, TransientError) else TransientError("")


retry_transient = retry(
    retry=retry_if_exception_type(TransientError), wait=_choose_delay, stop=_is_given_up, reraise=True
)
