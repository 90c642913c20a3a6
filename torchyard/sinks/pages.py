"""The pages of a run for an orchestrator that shows it: plan, preflight, curves and hang, while the run goes on."""

import time
from abc import abstractmethod
from collections.abc import Callable
from functools import partial

from torchyard.metrics.rows import Rows
from torchyard.model.event import AttemptStarted, ChecksMade, PlanMade, RowsRead, RunEvent, WaitEnded
from torchyard.model.hang import HangUpdate
from torchyard.pages.hang import render_hang_page
from torchyard.pages.plan import render_checks_page, render_plan_page
from torchyard.pages.report import render_metrics_page
from torchyard.run.services import Sink
from torchyard.sinks.progress import Progress, ProgressUpdate

_CURVES_INTERVAL_S = 15.0  # between two drawings of the curves, each of which takes a third of a second


class PageSink(Sink):
    """Turns events into pages in Markdown; a subclass publishes them in its orchestrator.

    A page replaces the one with the same name. It is rendered by a function that the subclass calls on its own thread.
    """

    purpose = "show the run in its orchestrator"

    def __init__(self) -> None:
        self._start_attempt("")

    def _start_attempt(self, job: str) -> None:
        self._job = job
        self._progress = Progress()
        self._rows = Rows()
        self._next_curves_at = time.monotonic() + _CURVES_INTERVAL_S  # a short job's curves are in its report

    @abstractmethod
    def show_page(self, name: str, render: Callable[[], str]) -> None:
        """Publish a page in place of the one that had this name."""

    @abstractmethod
    def show_progress(self, progress: str, percent: float) -> None:
        """Show the job's progress as text, such as `epoch 3 of 10`, and in percent."""

    def take(self, event: RunEvent) -> None:
        match event:
            case PlanMade():
                self.show_page("plan", partial(render_plan_page, event.profile, event.plan))
            case ChecksMade():
                self.show_page("preflight", partial(render_checks_page, event.checks))
            case AttemptStarted():
                self._start_attempt(event.job)
            case RowsRead():
                for row in event.rows:
                    self._rows.add(row)
                self._show_update(self._progress.add(event.rows))
            case WaitEnded():
                self._show_update(self._progress.flush())
            case HangUpdate():
                self.show_page("hang", partial(render_hang_page, self._job, event))
            case _:
                pass

    def _show_update(self, update: ProgressUpdate | None) -> None:
        if update is None:
            return
        if update.sentence is not None and update.percent is not None:
            self.show_progress(update.sentence, update.percent)
        if time.monotonic() >= self._next_curves_at:
            self._next_curves_at = time.monotonic() + _CURVES_INTERVAL_S
            self.show_page("metrics", partial(render_metrics_page, self._job, self._rows.all()))
