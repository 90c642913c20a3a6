"""Local errors: problems of this process and its machine, such as a full disk, no free descriptors, no API server.

They never end a job. They are reported once and waited out: an action that they prevent is repeated.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from tenacity import RetryCallState, retry, retry_if_exception, stop_after_delay, stop_never, wait_random_exponential

from torchyard.common.log import get_log
from torchyard.model.errors import ClusterError, FolderError, RunInUseError

# How long a step is repeated while a local error prevents it:
START_TIMEOUT_S = 60.0  # before anything was created
OUTAGE_TIMEOUT_S = 300.0  # once objects may exist
COLLECT_TIMEOUT_S = 600.0  # to read logs that are already on disk
RETRY_PAUSE_S = 1.0  # after a failure, before the next try
_REMINDER_INTERVAL_S = 600.0  # between two reports of an error that persists
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
    """Decorate an idempotent step: it is repeated while a local error prevents it, forever if `timeout_s` is None.

    After `timeout_s` seconds the error is raised. Any other error is raised immediately. The requests inside a step
    have their own retry policy (kube/retry.py), for faults of up to half a minute.
    """
    return retry(
        retry=retry_if_exception(is_local_error),
        wait=wait_random_exponential(RETRY_PAUSE_S, 5 * RETRY_PAUSE_S),
        stop=stop_never if timeout_s is None else stop_after_delay(timeout_s),
        before_sleep=_log_retry,
        reraise=True,
    )


def _log_retry(state: RetryCallState) -> None:
    """Log the error of the first attempt, of the second, the fourth, the eighth and so on."""
    is_power_of_two = state.attempt_number.bit_count() == 1
    if is_power_of_two:
        get_log().warning("%s; trying again", state.outcome and state.outcome.exception())


class LocalErrorGuard:
    """Keep a loop running while local errors prevent some of its actions.

    Each action runs inside `tolerate`, and each round of the loop ends with `pause`. An error is logged at its first
    occurrence, then every `_REMINDER_INTERVAL_S` while it persists; the first success after it is logged too. An
    action is identified by its text, which completes the sentence "cannot ...". For one thread.
    """

    def __init__(self) -> None:
        self._reported_at: dict[str, float] = {}  # by failing action: the last report, in monotonic seconds

    @contextlib.contextmanager
    def tolerate(self, action: str, *, ignore_errors: bool = False) -> Iterator[None]:
        """Catch and report a local error of the block; with `ignore_errors`, any Exception except RunInUseError.

        `ignore_errors` is for actions on which no job depends. RunInUseError is always raised: another process now
        holds the run.
        """
        try:
            yield
        except RunInUseError:
            raise
        except Exception as error:
            if not (ignore_errors or is_local_error(error)):
                raise
            self._report(action, error)
        else:
            if self._reported_at.pop(action, None):
                get_log().info("can %s again", action)

    def pause(self) -> None:
        """Sleep `RETRY_PAUSE_S` if an action is failing, so that the next try has a better chance."""
        if self._reported_at:
            time.sleep(RETRY_PAUSE_S)

    def _report(self, action: str, error: Exception) -> None:
        now = time.monotonic()
        if action not in self._reported_at or now - self._reported_at[action] >= _REMINDER_INTERVAL_S:
            self._reported_at[action] = now
            reason = str(error) or type(error).__name__
            get_log().warning("cannot %s: %s (retrying; the job is not affected)", action, reason)
