"""Shows how long a job that is being stopped has left, and ends it at once when a person asks again."""

import threading
import time
from collections.abc import Callable
from typing import Self

from torchyard.common.log import get_log
from torchyard.model.errors import TorchyardError

_REPORT_INTERVAL_S = 10.0
_POLL_INTERVAL_S = 0.25


class StopCountdown:
    """While its block stops a job, log the seconds that the job has left; call `kill` once if `is_urgent` is set.

    A thread of its own does both, and ends with the block. `kill` may raise TorchyardError, which is logged: the block
    stops the job in any case.

    Example: `with StopCountdown(job.kill, second_interrupt, grace_s=30.0): job.stop()`
    """

    def __init__(
        self, kill: Callable[[], object], is_urgent: threading.Event, *, grace_s: float, is_interactive: bool = True
    ) -> None:
        """`is_interactive`: a person at a terminal may set `is_urgent`, who then reads how."""
        self._kill = kill
        self._is_urgent = is_urgent
        self._grace_s = grace_s
        self._hint = "; a second Ctrl-C ends it at once" if is_interactive else ""
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stop-countdown", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopped.set()
        self._thread.join()

    def _run(self) -> None:
        started_at = time.monotonic()
        next_report_at = started_at + _REPORT_INTERVAL_S
        message = "the job has %.0f s to save its work and to end (deadlines.grace)%s"
        get_log().info(message, self._grace_s, self._hint)
        while not self._is_stopped.wait(_POLL_INTERVAL_S):
            if self._is_urgent.is_set():
                self._kill_now()
                return
            now = time.monotonic()
            remaining_s = self._grace_s - (now - started_at)
            if now >= next_report_at and remaining_s > 0:
                next_report_at = now + _REPORT_INTERVAL_S
                get_log().info("the job has %.0f s left", remaining_s)

    def _kill_now(self) -> None:
        get_log().warning("the job is ended at once, as asked")
        try:
            self._kill()
        except (TorchyardError, OSError) as error:
            get_log().warning("the job may use the rest of its grace: %s", error)
