"""This process's own trouble: a full disk, no descriptors, an API server that is away. It never ends a job.

It is reported once and waited out: work that it prevents is done later, or repeated.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from tenacity import RetryCallState, retry, retry_if_exception, stop_after_delay, stop_never, wait_random_exponential

from torchyard.common.log import get_log
from torchyard.model.errors import ClusterError, FolderError, RunInUseError

START_TIMEOUT_S = 60.0  # a step is repeated for so long before anything has been created
OUTAGE_TIMEOUT_S = 300.0  # the same once objects may exist
COLLECT_TIMEOUT_S = 600.0  # the same for reading logs that are already on disk
_RETRY_PAUSE_S = 1.0  # after a failure, before the next try
_REMINDER_INTERVAL_S = 600.0  # between two reports of a trouble that stays
P = ParamSpec("P")
R = TypeVar("R")


def is_local_error(error: BaseException) -> bool:
    """Whether an error is about this process and its machine, and not about the job."""
    match error:
        case OSError() | MemoryError() | FolderError():
            return True
        case ClusterError():
            return error.is_transient
        case RuntimeError():
            return "can't start new thread" in str(error)
        case _:
            return False


def retry_step(timeout_s: float | None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Repeat an idempotent step while own trouble prevents it, for `timeout_s` seconds, or forever if None.

    The requests inside a step have a retry policy of their own (kube/retry.py), for faults of half a minute.
    """
    return retry(
        retry=retry_if_exception(is_local_error),
        wait=wait_random_exponential(_RETRY_PAUSE_S, 5 * _RETRY_PAUSE_S),
        stop=stop_never if timeout_s is None else stop_after_delay(timeout_s),
        before_sleep=_log_retry,
        reraise=True,
    )


def _log_retry(state: RetryCallState) -> None:
    get_log().warning("%s; trying again", state.outcome and state.outcome.exception())


class LocalErrorGuard:
    """The current troubles of a wait, each known by the work that it prevents."""

    def __init__(self) -> None:
        self._reported: dict[str, float] = {}  # when each was last reported, while it lasts

    @contextlib.contextmanager
    def tolerate(self, action: str, *, ignore_errors: bool = False) -> Iterator[None]:
        """Survive own trouble in the block; with `ignore_errors`, any fault: for work on which no job depends."""
        try:
            yield
        except RunInUseError:
            raise
        except Exception as error:
            if not (ignore_errors or is_local_error(error)):
                raise
            self._report(action, error)
        else:
            if self._reported.pop(action, None):
                get_log().info("this process can %s again", action)

    def pause(self) -> None:
        """Wait a moment if something failed, so that the next try has a better chance."""
        if self._reported:
            time.sleep(_RETRY_PAUSE_S)

    def _report(self, action: str, error: Exception) -> None:
        now = time.monotonic()
        if action not in self._reported or now - self._reported[action] >= _REMINDER_INTERVAL_S:
            self._reported[action] = now
            reason = str(error) or type(error).__name__
            get_log().warning("this process cannot %s: %s; the job goes on, and it is tried again", action, reason)
