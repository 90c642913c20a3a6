"""A step that can be repeated outlasts an API server that is away, or does not let us in, for minutes."""

from tenacity import RetryCallState, retry, retry_if_exception, stop_after_delay, wait_random_exponential

from torchyard.common.log import get_log
from torchyard.model.errors import ClusterError

_OUTAGE_TIMEOUT_S = 300.0  # seconds
START_TIMEOUT_S = 60.0  # the same, before anything has been made


def _is_away(error: BaseException) -> bool:
    return isinstance(error, ClusterError) and error.is_away


def _log_retry(state: RetryCallState) -> None:
    get_log().warning("%s; it is tried again", state.outcome and state.outcome.exception())


retry_while_away = retry(
    retry=retry_if_exception(_is_away),
    wait=wait_random_exponential(1, 5),
    stop=stop_after_delay(_OUTAGE_TIMEOUT_S),
    before_sleep=_log_retry,
    reraise=True,
)
