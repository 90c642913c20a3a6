"""The log of a run: the newest values of its job as lines, and its report."""

import logging

from torchyard.common.log import get_log
from torchyard.model.event import AttemptStarted, ReportWritten, RowsRead, RunEvent, WaitEnded
from torchyard.pages.report import render_text
from torchyard.run.services import Sink
from torchyard.sinks.progress import OutputProgress, Progress, ProgressUpdate

_ENDS_WITHOUT_A_FAULT = ("succeeded", "cancelled", "stopped")


class LogSink(Sink):
    """Writes to the run's log: the terminal, or the log of the flow run."""

    purpose = "log the progress of the run"

    def __init__(self) -> None:
        self._progress = Progress()
        self._output_progress = OutputProgress()

    def take(self, event: RunEvent) -> None:
        match event:
            case AttemptStarted():
                self._progress = Progress()
                self._output_progress = OutputProgress()
            case RowsRead():
                self._log(self._progress.add(event.rows))
                summary = self._output_progress.add(event)
                if summary:
                    get_log().info("%s", summary)
            case WaitEnded():
                self._log(self._progress.flush())
            case ReportWritten():
                level = logging.INFO if event.report.end in _ENDS_WITHOUT_A_FAULT else logging.ERROR
                get_log().log(level, "%s", render_text(event.report))
            case _:
                pass

    def _log(self, update: ProgressUpdate | None) -> None:
        if update:
            get_log().info("%s", update.line)
