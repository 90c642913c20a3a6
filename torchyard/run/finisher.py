"""Ends a run: records the end, tears down what is open, and writes the report."""

import time
from pathlib import Path
from typing import Protocol

from torchyard.archive.copier import RunArchive
from torchyard.backend import backend_of
from torchyard.common import secrets
from torchyard.common.log import get_log
from torchyard.model.errors import FolderError, RunInUseError, TorchyardError
from torchyard.model.plan import Plan
from torchyard.model.profile import Profile
from torchyard.model.run import Attempt, End, Outcome, Report, Status, Step
from torchyard.model.trend import TrendVerdict
from torchyard.pages.report import render_text
from torchyard.run.folder import RunFolder
from torchyard.run.notifications import RunNotifier
from torchyard.run.reporter import Reporter
from torchyard.trend.night import build_record, compare_run
from torchyard.trend.records import RunIdentity, history_path


class _OpenRun(Protocol):
    """What RunFinisher needs from a run (see Runner)."""

    profile: Profile
    folder: RunFolder
    archive: RunArchive
    reporter: Reporter
    notifier: RunNotifier
    started_at: float
    steps: list[Step]
    attempts: list[Attempt]
    leftovers: list[str]
    open_attempt: tuple[int, Plan] | None
    plan: Plan | None

    def close(self, number: int, plan: Plan, outcome: Outcome) -> Attempt: ...
    def remove(self, plan: Plan) -> tuple[str, ...]: ...


class RunFinisher:
    """Finishes one run with the end that was decided. The caller holds signals off while it works."""

    def __init__(self, run: _OpenRun) -> None:
        self._run = run

    def finish(self, end: End, sentence: str) -> Report:
        """Record the end, tear down what is still open, write the report, and show it.

        A run that succeeded ends as failed if its number became worse and its profile asks for that.
        RunInUseError if another process owns the run by now.
        """
        run = self._run
        trend, history = self._compare(end)
        if trend and trend.verdict == "worse" and run.profile.trend and run.profile.trend.on_regression == "fail":
            end, sentence = "failed", f"{trend.sentence}; see {history}"
        self._record(end, sentence)
        if run.open_attempt:
            self._stop_attempt(*run.open_attempt, sentence)
        report = Report(
            profile=run.profile.name,
            run=run.folder.name,
            end=end,
            sentence=sentence,
            seconds=time.time() - run.started_at,
            steps=tuple(run.steps),
            attempts=tuple(run.attempts),
            leftovers=self._list_leftovers(),
            folder=str(run.folder.path),
            trend=trend,
            history=str(history),
            archive=run.archive.describe(),
        )
        report = secrets.mask_model(report)
        run.folder.note("end", end=end, by="flow", sentence=report.sentence)
        self._release()
        report = report.model_copy(update={"leftovers": self._list_leftovers()})
        report = report.model_copy(update={"unsent": run.notifier.finish(report)})
        self._publish(report)
        if missing := run.archive.settle():
            report = report.model_copy(update={"archive": missing})
            self._publish(report)
        return report

    def _list_leftovers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(map(secrets.mask_text, self._run.leftovers)))

    def _publish(self, report: Report) -> None:
        """Save the report and show it."""
        get_log().info("\n%s", render_text(report))
        try:
            self._run.folder.save_report(report)
        except FolderError as error:
            get_log().error("the report is not on disk: %s", error)
        self._run.reporter.show_report(report)

    def _compare(self, end: End) -> tuple[TrendVerdict | None, Path]:
        """Keep the run's numbers, and compare them with those of earlier runs; returns also where they are."""
        run = self._run
        runs, identity = run.folder.path.parent, RunIdentity(run.folder.name, round(run.started_at, 3))
        collected = run.attempts[-1].collected if run.attempts else None
        record = build_record(run.profile, identity, end, collected)
        run.archive.save_record(record)
        return compare_run(runs, record), history_path(runs, record.key)

    def _record(self, end: End, sentence: str) -> None:
        """Record the end for the next process, in the journal and where another machine can read it."""
        sentence = secrets.mask_text(sentence)
        self._run.folder.note("ending", end=end, sentence=sentence)
        if self._run.open_attempt:
            backend_of(self._run.open_attempt[1]).record_ending(end, sentence)

    def _stop_attempt(self, number: int, plan: Plan, reason: str) -> None:
        """Cut an attempt short: stop it and read its last lines, remove it, and collect what it left."""
        run = self._run
        outcome = run.folder.outcome(number)
        if not outcome:
            lost_lines = backend_of(plan).stop_unwatched()
            outcome = Outcome(
                status=Status(state="failed", reason=reason), cause="stopped", exit_codes={}, lost=lost_lines
            )
        run.leftovers += run.remove(plan)
        try:
            run.close(number, plan, outcome)
        except RunInUseError:
            raise
        except TorchyardError as error:
            run.leftovers.append(str(error))

    def _release(self) -> None:
        """Stop renewing the lease, and release the run if nothing is left; leftovers are for the sweep."""
        if not self._run.plan:
            return
        backend = backend_of(self._run.plan)
        backend.abandon_lease()
        try:
            if not self._run.leftovers:
                backend.release()
        except TorchyardError as error:
            self._run.leftovers.append(str(error))
