"""How long a request is repeated while the API server is away or busy, and how long is waited in between."""

import contextlib
import random
import time
from email.utils import parsedate_to_datetime

from tenacity import RetryCallState, retry, retry_if_exception_type, wait_random_exponential

PATIENCE = 30.0  # seconds
BRIEFLY = 3.0  # the same, for a first knock, and for what a dry run is there to find
LONGEST = 30.0  # seconds that a server may ask for before it is asked again
FIRST = 0.2  # seconds before a second try; each pause after it may be half as long again
JITTERED = wait_random_exponential(FIRST, 5)


class BusyError(Exception):
    """The API server did not answer (`status` 0), or asked to come back later, `after` so many seconds.

    `patience`: for how many seconds it is worth to ask again, where that is not PATIENCE.
    """

    def __init__(self, said: str, status: int = 0, after: float = 0.0, patience: float | None = None) -> None:
        super().__init__(said, status, after, patience)
        self.said, self.status, self.after, self.patience = said, status, after, patience

    def __str__(self) -> str:
        return self.said


class Pauses:
    """Longer and longer pauses between tries, no two alike: who waits for one server does not come back at once."""

    def __init__(self) -> None:
        self._tries = 0

    def reset(self) -> None:
        self._tries = 0

    def next(self, most: float, least: float = 0.0) -> float:
        """Seconds; about half as long as everything before it, so that an end of the outage is soon seen."""
        pause = min(most, FIRST * 1.5 ** min(self._tries, 50)) * random.uniform(0.5, 1.0)
        self._tries += 1
        return max(pause, least)


def retry_after(header: str | None) -> float:
    """The seconds that a Retry-After header asks for, bounded: a number, or a date; 0 where it cannot be read."""
    if not header:
        return 0.0
    seconds = 0.0
    with contextlib.suppress(ValueError, OverflowError):
        number = header.strip().isdigit()
        seconds = float(header) if number else parsedate_to_datetime(header).timestamp() - time.time()
    return min(max(seconds, 0.0), LONGEST)


def pause(state: RetryCallState) -> float:
    return max(JITTERED(state), busy(state).after)


def given_up(state: RetryCallState) -> bool:
    """Whether it was tried long enough, and twice at least."""
    return state.attempt_number >= 2 and (state.seconds_since_start or 0.0) >= (busy(state).patience or PATIENCE)


def busy(state: RetryCallState) -> BusyError:
    """Why the last try failed."""
    error = state.outcome.exception() if state.outcome else None
    return error if isinstance(error, BusyError) else BusyError("")


patiently = retry(retry=retry_if_exception_type(BusyError), wait=pause, stop=given_up, reraise=True)
