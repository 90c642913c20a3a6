"""This process's own trouble: a full disk, no descriptors, an API server that is away. It never ends a job.

It is reported once, and waited out: what it kept from being done is done later, or again.
"""

import contextlib
import time
from collections.abc import Iterator

from tenacity import RetryCallState, Retrying, retry, retry_if_exception, stop_after_delay, wait_fixed

from torchyard.common.log import get_log
from torchyard.model.errors import ClusterError, FolderError, RunInUseError

_RETRY_PAUSE_S = 1.0  # after a failure, before the next try
_REMINDER_INTERVAL_S = 600.0  # between two reports of a trouble that stays
_STEP_RETRY_TIMEOUT_S = 600.0  # for a step that can be done again as a whole


def is_own_trouble(error: BaseException) -> bool:
    """Whether an error tells of this process and its machine, and not of the job."""
    match error:
        case OSError() | MemoryError() | FolderError():
            return True
        case ClusterError():
            return error.is_away
        case RuntimeError():
            return "can't start new thread" in str(error)
        case _:
            return False


def _log_retry(state: RetryCallState) -> None:
    get_log().warning("trouble on this machine: %s; it is tried again", state.outcome and state.outcome.exception())


retry_own_trouble = retry(
    retry=retry_if_exception(is_own_trouble),
    wait=wait_fixed(5 * _RETRY_PAUSE_S),
    stop=stop_after_delay(_STEP_RETRY_TIMEOUT_S),
    before_sleep=_log_retry,
    reraise=True,
)


retry_own_trouble_forever = Retrying(
    retry=retry_if_exception(is_own_trouble), wait=wait_fixed(_RETRY_PAUSE_S), before_sleep=_log_retry, reraise=True
)


class OwnTrouble:
    """The own troubles of a wait, by what each of them keeps from being done."""

    def __init__(self) -> None:
        self._said: dict[str, float] = {}  # when each was reported last, while it lasts

    @contextlib.contextmanager
    def endured(self, what: str, whatever: bool = False) -> Iterator[None]:
        """Pass over own trouble in the block; `whatever`: any fault, where nothing of the job depends on it."""
        try:
            yield
        except RunInUseError:
            raise
        except Exception as error:
            if not (whatever or is_own_trouble(error)):
                raise
            self._tell(what, error)
        else:
            if self._said.pop(what, None):
                get_log().info("this process can %s again", what)

    def pause(self) -> None:
        """Wait a moment where something failed, so that the next try may find it better."""
        if self._said:
            time.sleep(_RETRY_PAUSE_S)

    def _tell(self, what: str, error: Exception) -> None:
        now = time.monotonic()
        if what not in self._said or now - self._said[what] >= _REMINDER_INTERVAL_S:
            self._said[what] = now
            why = str(error) or type(error).__name__
            get_log().warning("this process cannot %s: %s; the job goes on, and it is tried again", what, why)
