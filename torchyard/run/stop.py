"""Stops the job of an attempt early: the request, how it ended, and how long it has left meanwhile."""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Self

from torchyard.backends import job_of
from torchyard.common import secrets
from torchyard.common.log import get_log
from torchyard.model.causes.launcher import LauncherCause
from torchyard.model.checkpoint import StopRequest
from torchyard.model.errors import FolderError, TorchyardError
from torchyard.model.run import Outcome, Status
from torchyard.run.folder import AttemptPlan, RunFolder
from torchyard.steps.hang_files import read_hang

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


def stop_job(folder: RunFolder, number: int, attempt_plan: AttemptPlan, reason: str) -> Outcome:
    """Stop the job of an attempt, as far as that must precede its removal; return how it ended.

    TorchyardError if the job cannot be stopped so; RunInUseError if another process owns the run.
    """
    job = job_of(attempt_plan.plan)
    stop = StopRequest(author=reason, asked_at=job.now(), grace_s=attempt_plan.deadlines.grace)
    stop = record_stop(folder, number, stop)
    return build_stopped_outcome(folder, number, reason, stop, job.stop_unwatched())


def record_stop(folder: RunFolder, number: int, stop: StopRequest) -> StopRequest:
    """Record in the journal that the job of an attempt is asked to stop; return the first such request.

    Its grace counts from that one, whichever process asks again. A journal that cannot be read has none: the job is
    stopped in any case.
    """
    with contextlib.suppress(FolderError):
        first = folder.read_record().find_stop(number)
        if first:
            return first
    folder.record_event("stop", attempt=number, **secrets.mask_model(stop).model_dump())
    return stop


def build_stopped_outcome(
    folder: RunFolder, number: int, reason: str, stop: StopRequest | None, lost: Mapping[str, str]
) -> Outcome:
    """How the job of an attempt ended that was stopped. `lost`: what is missing of its logs, by node."""
    return Outcome(
        status=Status(state="failed", reason=reason),
        cause=LauncherCause.STOPPED,
        exit_codes={},
        lost=dict(lost),
        stop=stop,
        hang=read_hang(folder.attempt(number)),
    )
