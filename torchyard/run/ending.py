"""The end of a run: written down, torn down, reported."""

import time
from typing import Protocol

from torchyard.backend import backend_of
from torchyard.common import secrets
from torchyard.common.log import get_log
from torchyard.model.errors import FolderError, RunInUseError, TorchyardError
from torchyard.model.plan import Plan
from torchyard.model.profile import Profile
from torchyard.model.run import Attempt, End, Outcome, Report, Status, Step
from torchyard.run.folder import RunFolder
from torchyard.run.report import render_text
from torchyard.run.reporter import Reporter


class _OpenRun(Protocol):
    """What the end must know of a run (see Runner)."""

    profile: Profile
    folder: RunFolder
    reporter: Reporter
    began: float
    steps: list[Step]
    attempts: list[Attempt]
    left: list[str]
    open: tuple[int, Plan] | None
    plan: Plan | None

    def close(self, number: int, plan: Plan, outcome: Outcome) -> Attempt: ...
    def remove(self, plan: Plan) -> tuple[str, ...]: ...


class RunFinisher:
    """Brings one run to the end that it has come to. Signals are held off meanwhile."""

    def __init__(self, run: _OpenRun) -> None:
        self._run = run

    def finish(self, end: End, sentence: str) -> Report:
        """Say which end it is, tear down what is still open, write the report, and show it.

        RunInUseError where another process carries the run by now.
        """
        run = self._run
        self._record(end, sentence)
        if run.open:
            self._abandon(*run.open, sentence)
        report = Report(
            profile=run.profile.name,
            run=run.folder.name,
            end=end,
            sentence=sentence,
            seconds=time.time() - run.began,
            steps=tuple(run.steps),
            attempts=tuple(run.attempts),
            left=tuple(dict.fromkeys(run.left)),
            folder=str(run.folder.path),
        )
        report = secrets.mask_model(report)
        run.folder.note("end", end=end, by="flow", sentence=report.sentence)
        self._release()
        get_log().info("\n%s", render_text(report))
        try:
            run.folder.save_report(report)
        except FolderError as error:
            get_log().error("the report is not on disk: %s", error)
        run.reporter.show_report(report)
        return report

    def _record(self, end: End, sentence: str) -> None:
        """Write down what the next process shall make of it, here and where another machine reads it."""
        sentence = secrets.mask_text(sentence)
        self._run.folder.note("ending", end=end, sentence=sentence)
        if self._run.open:
            backend_of(self._run.open[1]).record_ending(end, sentence)

    def _abandon(self, number: int, plan: Plan, why: str) -> None:
        """End an attempt in the middle: stop it first, then read what it left."""
        run = self._run
        stopped = Outcome(status=Status(state="failed", reason=why), cause="stopped", exits={})
        run.left += run.remove(plan)
        try:
            run.close(number, plan, run.folder.outcome(number) or stopped)
        except RunInUseError:
            raise
        except TorchyardError as error:
            run.left.append(str(error))

    def _release(self) -> None:
        """Nobody need look after the run any more; what is left of it is the sweep's."""
        if not self._run.plan:
            return
        backend = backend_of(self._run.plan)
        backend.abandon_lease()
        try:
            if not self._run.left:
                backend.release()
        except TorchyardError as error:
            self._run.left.append(str(error))
