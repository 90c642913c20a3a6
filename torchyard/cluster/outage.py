"""Reports an API server that does not answer, or refuses to show the job."""

import time

from torchyard.common.log import get_log
from torchyard.kube.retry import TransientError
from torchyard.model.errors import ClusterError

_REPORT_AFTER_S = 10.0  # seconds that an API server may be away before that is reported
OutageCause = TransientError | ClusterError | None


class OutageReporter:
    """Logs once that the job cannot be seen, and why, and once that it is seen again."""

    def __init__(self) -> None:
        self._since, self._said = 0.0, False

    def report(self, trouble: OutageCause) -> None:
        """Take what is wrong now, if anything. A refusal is logged at once: a person must fix it."""
        now = time.monotonic()
        if trouble is None:
            if self._said:
                get_log().info("the API server answers again after %.0f s, and the job is seen", now - self._since)
            self._since, self._said = 0.0, False
            return
        self._since = self._since or now
        refused = isinstance(trouble, ClusterError)
        if not self._said and (refused or now - self._since > _REPORT_AFTER_S):
            self._said = True
            what = "refuses to show the job" if refused else "does not answer"
            why = trouble.message if isinstance(trouble, ClusterError) else str(trouble)
            get_log().warning("the API server %s (%s); the job goes on, and so does the wait", what, why)
