"""Cleans up after a run whose launcher is dead: stops its job, removes it, reads its logs, and reports its end."""

import time
from collections.abc import Callable
from typing import NamedTuple

from torchyard.backends import owner_of
from torchyard.common import secrets
from torchyard.common.log import get_log
from torchyard.model.errors import ArchiveError, FolderError, RunInUseError, TorchyardError
from torchyard.model.plan import Plan
from torchyard.model.run import Attempt, End, Outcome, Report, RunEnd
from torchyard.run import history
from torchyard.run.folder import AttemptPlan, RunFolder
from torchyard.run.result import build_report, describe_end
from torchyard.run.services import Archive, OpenArchive
from torchyard.run.stop import build_stopped_outcome, stop_job
from torchyard.steps.collect import collect
from torchyard.steps.teardown import teardown

EndCallback = Callable[[str, Report], object]  # the run's id, and its report
_ARCHIVE_TIMEOUT_S = 5.0


def is_run_open(folder: RunFolder) -> bool:
    """Whether a run may still have something running: its journal has no end, or the end `gave-up`."""
    record = folder.read_record()
    if record.events:
        return record.end in ("", "gave-up")
    return bool(folder.attempts())  # no line of the journal can be read


class _RemovedRun(NamedTuple):
    """What is known of a run whose attempts were removed.

    attempts: those whose logs were read, in order; the last one was stopped now if it had not ended.
    """

    leftovers: tuple[str, ...] = ()
    attempts: tuple[Attempt, ...] = ()


def end_lost_run(
    folder: RunFolder,
    ended_by: str,
    default_end: RunEnd,
    open_archive: OpenArchive,
    on_end: EndCallback,
    *,
    only_expired: bool = False,
) -> tuple[str, ...] | None:
    """Tear down everything of one run, journal its end, write its report, call `on_end`; return the leftovers.

    None if a living process owns the run, or if `only_expired` and its lease (the time limit in its folder) has not
    ended: a process may have resumed the run since it was listed. Empty if everything was removed, or if the run had
    ended already. What cannot be read or removed is a leftover; if that is the folder itself, or with `only_expired`
    the archive, nothing is removed and `on_end` is not called. A run that was ending when its launcher died gets the
    end that the launcher had recorded, others get `default_end`.
    """
    try:
        with folder.owned(), open_archive(folder.path, lambda: None, is_resumed=True) as archive:
            if only_expired and folder.remaining_lease_s() >= 0:
                return None
            if not is_run_open(folder):
                return ()
            if archive.fetch(_ARCHIVE_TIMEOUT_S):  # else the archive may have newer files, which stay as they are
                archive.start()
            elif only_expired:
                raise ArchiveError(folder.name, "it does not answer, and may show that the run has ended elsewhere")
            if not is_run_open(folder):
                return ()
            record = folder.read_record()
            end: End = record.ending.get("end", default_end.end)
            reason = record.ending.get("sentence", default_end.sentence)
            removed = _remove_run(folder, archive, reason)
            sentence = describe_end(end, reason, removed.attempts)
            folder.record_event("end", end=end, by=ended_by, sentence=sentence, left=removed.leftovers)
            report = _build_report(folder, end, sentence, removed)
            if removed.attempts:  # else the report is empty
                _save_report(folder, report)
    except RunInUseError:
        return None
    except TorchyardError as error:
        return (str(error),)
    on_end(record.run_id, report)
    return removed.leftovers


def _remove_run(folder: RunFolder, archive: Archive, reason: str) -> _RemovedRun:
    """Remove a run's attempts and their Lease. RunInUseError if another machine owns the run.

    `reason`: why the job of the last attempt is stopped, if its outcome was not recorded.
    """
    attempt_plans = [(number, folder.attempt_plan(number)) for number in folder.attempts()]
    plans = [(number, attempt_plan) for number, attempt_plan in attempt_plans if attempt_plan]
    if not plans:
        return _RemovedRun()
    number, latest = plans[-1]
    owner = owner_of(latest.plan)
    owner.check_not_elsewhere()
    outcome = folder.outcome(number) or _stop_job(folder, number, latest, reason)
    leftovers: list[str] = []
    for _, attempt_plan in plans:
        leftovers += teardown(attempt_plan.plan, end_run=False)
    if not leftovers:
        owner.release()
    attempts = [folder.ended(earlier_number) for earlier_number, _ in plans[:-1]]
    attempts.append(folder.ended(number) or _read_attempt(folder, archive, number, latest.plan, outcome))
    return _RemovedRun(tuple(leftovers), tuple(filter(None, attempts)))


def _stop_job(folder: RunFolder, number: int, attempt_plan: AttemptPlan, reason: str) -> Outcome:
    """Stop the job of an attempt before it is removed; return how it ended. RunInUseError if another process owns it.

    A job that cannot be stopped so is removed in any case: its last lines are then missing.
    """
    try:
        return stop_job(folder, number, attempt_plan, reason)
    except RunInUseError:
        raise
    except Exception as error:
        get_log().warning("the last lines of %s may be missing: %s", attempt_plan.plan.job, error)
    return build_stopped_outcome(folder, number, reason, folder.read_record().find_stop(number), {})


def _read_attempt(folder: RunFolder, archive: Archive, number: int, plan: Plan, outcome: Outcome) -> Attempt | None:
    """Read the logs of an attempt, and save its checkpoints for the next run; None if that fails, which is logged."""
    secrets.remember_secrets(plan)
    try:
        archive.await_logs(number)
        attempt = secrets.mask_model(Attempt(number=number, outcome=outcome, collected=collect(plan, outcome)))
        folder.save_checkpoints(number, attempt.collected.checkpoints)
        folder.save_ended(attempt)
    except Exception as error:  # such as a disk that fails: the end of the run must be recorded in any case
        get_log().warning("the logs of %s cannot be read: %s", plan.job, error)
        return None
    return attempt


def _build_report(folder: RunFolder, end: End, sentence: str, removed: _RemovedRun) -> Report:
    record = folder.read_record()
    report = build_report(
        folder,
        record.last_start.get("profile", ""),
        RunEnd(end, sentence),
        started_at=history.find_start_time(record, time.time()),
        steps=history.list_past_steps(record),
        attempts=removed.attempts,
    )
    return secrets.mask_model(report.model_copy(update={"leftovers": removed.leftovers}))


def _save_report(folder: RunFolder, report: Report) -> None:
    """Write the report. If it cannot be written, that is an error in the log: the end is reported in any case."""
    try:
        folder.save_report(report)
    except FolderError as error:
        get_log().error("the report is not on disk: %s", error)
