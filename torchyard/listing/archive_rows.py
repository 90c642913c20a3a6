"""The runs of the archive, as rows of the list."""

import re
import time
from collections.abc import Set
from datetime import UTC, datetime
from typing import NamedTuple

from pydantic import ValidationError

from torchyard.archive.contents import is_journal, merge_journals
from torchyard.archive.store import HISTORY, Store
from torchyard.listing.listed_run import ListedRun
from torchyard.listing.plan_rows import build_row
from torchyard.listing.run_summaries import RunSummary, summarize_run
from torchyard.run.folder import AttemptPlan
from torchyard.run.journal import parse_events
from torchyard.run.record import RunRecord

_PLAN_PATH = re.compile(r"attempt-(\d{1,6})/plan\.json")


class _ArchivedRun(NamedTuple):
    """A run of the archive.

    last_event_at: when the last event of its journal was recorded, in seconds since the epoch.
    plan_path: of its last attempt's plan; empty if it has none.
    """

    summary: RunSummary
    last_event_at: float
    plan_path: str


def list_archived_runs(store: Store, local_names: Set[str], *, with_finished: bool) -> list[ListedRun]:
    """The runs of the archive that are not among `local_names`: those that go on, or all.

    Whether the process of a run is alive cannot be seen there, so a run without an end counts as going on, and its note
    states when its last event was recorded. Costs one listing, and one read of all journals and of the plans that are
    shown. ArchiveError if the archive cannot be read.
    """
    names_by_run: dict[str, list[str]] = {}
    for path in store.list_files(""):
        run, _, name = path.partition("/")
        if run not in local_names and run != HISTORY:
            names_by_run.setdefault(run, []).append(name)
    journal_paths: list[str] = []
    for run, names in names_by_run.items():
        journal_paths += [f"{run}/{name}" for name in names if is_journal(name)]
    journals = store.read_all(journal_paths)

    rows: list[ListedRun] = []
    archived_runs: list[_ArchivedRun] = []
    for run, names in names_by_run.items():
        contents = [journals[f"{run}/{name}"] for name in names if is_journal(name)]
        if not contents:
            continue  # a folder of something else
        try:
            archived_runs.append(_read_run(run, names, contents))
        except Exception as error:  # whatever a journal contains, the other runs are listed
            rows.append(_build_unreadable_row(run, store, error))
    visible_runs = [archived for archived in archived_runs if archived.summary.is_open or with_finished]
    plans = store.read_all([archived.plan_path for archived in visible_runs if archived.plan_path])
    for archived in visible_runs:
        try:
            rows.append(_build_archive_row(archived, plans.get(archived.plan_path)))
        except Exception as error:  # such as a time in the journal that no calendar has
            rows.append(_build_unreadable_row(archived.summary.run, store, error))
    return rows


def _build_unreadable_row(run: str, store: Store, error: Exception) -> ListedRun:
    note = f"its journal in {store.url} cannot be read: {error}"
    return ListedRun(name=run, state="unreadable", note=note, source="archive")


def _read_run(run: str, names: list[str], journals: list[bytes]) -> _ArchivedRun:
    """A run, from its files in the archive. Raises any error if its journals contain something else than events."""
    attempts = [int(match[1]) for match in map(_PLAN_PATH.fullmatch, names) if match]
    record = RunRecord(parse_events(merge_journals(b"", journals)))
    summary = summarize_run(run, record, len(attempts), lambda: True, time.time())
    plan_path = f"{run}/attempt-{max(attempts)}/plan.json" if attempts else ""
    return _ArchivedRun(summary, float(record.events[-1]["at"]), plan_path)


def _build_archive_row(archived: _ArchivedRun, plan_data: bytes | None) -> ListedRun:
    summary = archived.summary
    note = summary.sentence
    if summary.is_open:
        last_event = datetime.fromtimestamp(archived.last_event_at, UTC)
        note = f"as archived: its last event was at {last_event:%Y-%m-%d %H:%M:%S} UTC"
    plan = None
    if plan_data is not None:
        try:
            plan = AttemptPlan.model_validate_json(plan_data).plan
        except ValidationError:
            note = f"{note}; its plan cannot be read"
    row = build_row(summary, plan, note, "archive")
    return row.model_copy(update={"attempt": summary.attempts or None})
