"""A step that can be repeated outlasts an API server that is away, or does not let us in, for minutes."""

from tenacity import RetryCallState, retry, retry_if_exception, stop_after_delay, wait_random_exponential

from tasks.errors import ClusterError
from tasks.step import log

OUTAGE = 300.0  # seconds
BEGIN = 60.0  # the same, before anything has been made
AWAY = (0, 401, 429, 500, 502, 503, 504)  # who logs in again meanwhile need not begin anew


def is_away(error: BaseException) -> bool:
    return isinstance(error, ClusterError) and error.status in AWAY


def tell(state: RetryCallState) -> None:
    log().warning("%s; it is tried again", state.outcome and state.outcome.exception())


outlasting = retry(
    retry=retry_if_exception(is_away),
    wait=wait_random_exponential(1, 5),
    stop=stop_after_delay(OUTAGE),
    before_sleep=tell,
    reraise=True,
)
