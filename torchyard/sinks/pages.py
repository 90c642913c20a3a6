"""The pages of a run for an orchestrator that shows it: plan, preflight, curves and hang, while the run goes on."""

import time
from abc import abstractmethod
from collections.abc import Callable
from functools import partial

from torchyard.metrics.registry import describe_row
from torchyard.metrics.rows import Rows
from torchyard.model.event import AttemptStarted, ChecksMade, PlanMade, RowsRead, RunEvent, WaitEnded
from torchyard.model.hang import HangUpdate
from torchyard.model.run import Row
from torchyard.pages.hang import NO_HANG_SENTENCE, render_hang_page
from torchyard.pages.plan import describe_plan, describe_preflight, render_checks_page, render_plan_page
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
        self._latest_numbers: Row = {}  # the newest of each name
        self._has_new_rows = False  # since the last drawing
        self._has_curves = False
        self._next_curves_at = time.monotonic() + _CURVES_INTERVAL_S  # a short job's curves are in its report

    @abstractmethod
    def show_page(self, name: str, sentence: str, render: Callable[[], str]) -> None:
        """Publish a page in place of the one that had this name. `sentence`: its content, for a list of pages."""

    @abstractmethod
    def show_progress(self, progress: str, percent: float) -> None:
        """Show the job's progress as text, such as `epoch 3 of 10`, and in percent."""

    def take(self, event: RunEvent) -> None:
        match event:
            case PlanMade():
                sentence = describe_plan(event.profile, event.plan)
                self.show_page("plan", sentence, partial(render_plan_page, event.profile, event.plan))
            case ChecksMade():
                self.show_page("preflight", describe_preflight(event.checks), partial(render_checks_page, event.checks))
            case AttemptStarted():
                self._start_attempt(event.job)
            case RowsRead():
                for row in event.rows:
                    self._rows.add(row)
                    self._latest_numbers |= _select_numbers(row)
                self._has_new_rows = self._has_new_rows or bool(event.rows)
                self._show_progress(self._progress.add(event.rows))
                self._show_curves()
            case WaitEnded():
                self._show_progress(self._progress.flush())
                self._show_curves(is_last=True)
            case HangUpdate():
                sentence = event.hang.sentence if event.hang else NO_HANG_SENTENCE
                self.show_page("hang", sentence, partial(render_hang_page, self._job, event))
            case _:
                pass

    def _show_progress(self, update: ProgressUpdate | None) -> None:
        if update and update.sentence is not None and update.percent is not None:
            self.show_progress(update.sentence, update.percent)

    def _show_curves(self, *, is_last: bool = False) -> None:
        """Draw the rows if there are new ones and the last drawing is old enough.

        The last drawing has every row; a job that ends before its first drawing has its curves in the report alone.
        """
        is_due = time.monotonic() >= self._next_curves_at
        if not self._has_new_rows or not (is_due or (is_last and self._has_curves)):
            return
        self._next_curves_at = time.monotonic() + _CURVES_INTERVAL_S
        self._has_new_rows = False
        self._has_curves = True
        sentence = describe_row(self._latest_numbers)
        self.show_page("metrics", sentence, partial(render_metrics_page, self._job, self._rows.all()))


def _select_numbers(row: Row) -> Row:
    """The row without texts, such as the path of a checkpoint, which would fill the card of a page."""
    return {name: value for name, value in row.items() if not isinstance(value, str)}
