"""Reports an API server that does not respond, or that refuses to list the job's objects."""

import time
from http import HTTPStatus

from torchyard.common.log import get_log
from torchyard.kube.retry import TransientError
from torchyard.model.errors import ClusterError

REPORT_AFTER_S = 10.0  # seconds that an API server may be away before that is reported
OutageCause = TransientError | ClusterError | None  # None: the job can be observed


class OutageReporter:
    """Log one warning when the job cannot be observed, with the reason, and one message when it can be again.

    `report` is called at every poll by one thread. An API server that does not respond is reported after
    `REPORT_AFTER_S`, because a brief outage needs no person; a refusal is reported at once. Times are monotonic.
    """

    def __init__(self) -> None:
        self._started_at = 0.0  # of the current outage, in monotonic seconds; 0 if there is none
        self._is_reported = False

    def report(self, error: OutageCause) -> None:
        """Log the current error if it is due and not logged yet; None ends the outage."""
        now = time.monotonic()
        if error is None:
            self._end_outage(now)
            return
        self._started_at = self._started_at or now
        is_refusal = isinstance(error, ClusterError) and not _is_away(error)
        if self._is_reported or not (is_refusal or now - self._started_at > REPORT_AFTER_S):
            return
        self._is_reported = True
        problem = "refuses to show the job" if is_refusal else "does not respond"
        get_log().warning(
            "the API server %s: %s. The job keeps running; still waiting for the API server", problem, error.message
        )

    def _end_outage(self, now: float) -> None:
        if self._is_reported:
            get_log().info(
                "the API server responds again after %.0f s; the job is observed again", now - self._started_at
            )
        self._started_at = 0.0
        self._is_reported = False


def _is_away(error: ClusterError) -> bool:
    """Whether the API server did not respond, or is busy, although the request was repeated. 401 needs a person."""
    return error.is_transient and error.status != HTTPStatus.UNAUTHORIZED
