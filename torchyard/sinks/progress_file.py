"""The progress of the running job, in the run's folder: what `torchyard ps` shows of a run beside its state."""

import time

from torchyard.model.event import AttemptStarted, BadLossRead, RowsRead, RunEvent, StatusRead, WaitEnded
from torchyard.model.hang import HangUpdate
from torchyard.model.run import JobProgress
from torchyard.run.folder import RunFolder
from torchyard.run.services import Sink
from torchyard.sinks.progress import Progress, ProgressUpdate


class ProgressFileSink(Sink):
    """Writes the file as soon as something new is known: as often as the log has a new line about the progress.

    The reason of a job that waits may change at every poll, so it is written with the next poll that is
    `interval_s` seconds after the last write.
    """

    purpose = "record the progress of the run"

    def __init__(self, folder: RunFolder, *, interval_s: float = 2.0) -> None:
        self._folder = folder
        self._interval_s = interval_s
        self._start_attempt(0)

    def _start_attempt(self, number: int) -> None:
        self._progress = Progress()
        self._latest = JobProgress(attempt=number, updated_at=0.0)
        self._saved = self._latest
        self._bad_loss = ""  # a sentence about the first one; empty if there is none
        self._next_write_at = 0.0  # monotonic seconds

    def take(self, event: RunEvent) -> None:
        match event:
            case AttemptStarted():
                self._start_attempt(event.number)
            case RowsRead():
                self._add_update(self._progress.add(event.rows))
            case WaitEnded():
                self._add_update(self._progress.flush())
            case StatusRead():
                self._set(reason=event.status.reason if event.status.state == "pending" else "")
            case HangUpdate():
                self._set(warning=event.hang.sentence if event.hang else self._bad_loss)
            case BadLossRead():
                self._bad_loss = event.bad_loss.sentence
                self._set(warning=self._bad_loss)
            case _:
                return
        self._save(is_last=isinstance(event, WaitEnded))

    def _add_update(self, update: ProgressUpdate | None) -> None:
        if update:
            self._set(values=update.line)
        if update and update.done is not None:
            self._set(done=update.done, percent=update.percent, remaining_s=update.remaining_s)

    def _set(self, **fields: str | float | None) -> None:
        self._latest = self._latest.model_copy(update=fields)

    def _save(self, *, is_last: bool) -> None:
        """Write what is new, at most every `interval_s` seconds, and at the end of the wait."""
        if self._latest == self._saved or (time.monotonic() < self._next_write_at and not is_last):
            return
        self._next_write_at = time.monotonic() + self._interval_s
        self._folder.save_progress(self._latest.model_copy(update={"updated_at": round(time.time(), 3)}))
        self._saved = self._latest
