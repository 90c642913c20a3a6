"""The runs of this machine's run folders, as rows of the list."""

from collections.abc import Sequence

from torchyard.listing.listed_run import ListedRun
from torchyard.listing.plan_rows import build_row
from torchyard.listing.run_summaries import RunsReader, RunSummary
from torchyard.model.errors import FolderError
from torchyard.model.run import JobProgress
from torchyard.run.folder import RunFolder, runs_folder


class FolderLister:
    """List the runs of this machine, again at each call. A run that is over is read once. Not thread-safe."""

    def __init__(self, *, with_finished: bool) -> None:
        """`with_finished`: read the plans of the runs that have ended too; else their rows lack what the plan adds."""
        self._with_finished = with_finished
        self._reader = RunsReader()
        self._finished: dict[str, tuple[RunSummary, ListedRun]] = {}

    def list_runs(self) -> list[ListedRun]:
        """All runs, and a row for each folder that cannot be read.

        OSError if the folder of all runs cannot be listed.
        """
        all_runs = self._reader.read()
        rows = [ListedRun(name=folder.name, state="unreadable", note=folder.reason) for folder in all_runs.unreadable]
        for summary in all_runs.runs:
            row = _build_folder_row(summary) if summary.is_open else self._get_finished_row(summary)
            rows.append(row)
        return rows

    def _get_finished_row(self, summary: RunSummary) -> ListedRun:
        cached = self._finished.get(summary.run)
        if cached is None or cached[0] is not summary:  # the reader returns the same object while nothing changes
            row = _build_folder_row(summary) if self._with_finished else build_row(summary, None, summary.sentence)
            cached = (summary, row)
            self._finished[summary.run] = cached
        return cached[1]


def _build_folder_row(summary: RunSummary) -> ListedRun:
    """A run of this machine. What cannot be read beside its journal is reported in the note."""
    folder = RunFolder(runs_folder() / summary.run)
    numbers = folder.attempts()
    attempt_plan = None
    progress = None
    note = summary.sentence
    try:
        attempt_plan = folder.attempt_plan(numbers[-1]) if numbers else None
        if summary.is_open:
            progress = _select_progress(folder.progress(), numbers)
            note = _describe_open_run(summary, progress, folder)
    except FolderError as error:
        note = error.reason
    row = build_row(summary, attempt_plan.plan if attempt_plan else None, note)
    attempt = numbers[-1] if numbers else None
    return row.model_copy(update={"attempt": attempt, "progress": progress})


def _select_progress(progress: JobProgress | None, numbers: Sequence[int]) -> JobProgress | None:
    """The progress if it is that of the last attempt, else None. `numbers`: of all attempts, ascending."""
    return progress if progress and numbers and progress.attempt == numbers[-1] else None


def _describe_open_run(summary: RunSummary, progress: JobProgress | None, folder: RunFolder) -> str:
    """What a user should learn about a run that goes on, beside its state; empty if there is nothing."""
    if summary.state == "lost":
        if folder.remaining_lease_s() < 0:
            return "no process owns it, and its lease has ended"
        return "no process owns it; its job may run on until its lease ends"
    if progress is None or summary.ended_at is not None:
        return summary.sentence
    return progress.reason if summary.state == "waiting" else progress.warning
