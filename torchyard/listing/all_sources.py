"""The runs of all sources as one list: this machine's folder, the archive, a cluster."""

import math
from collections.abc import Mapping
from functools import partial

from torchyard.archive.store import call_bounded, open_store
from torchyard.listing.archive_rows import list_archived_runs
from torchyard.listing.folder_rows import FolderLister
from torchyard.listing.lease_rows import build_lease_row
from torchyard.listing.listed_run import ListedRun, RunList
from torchyard.model.errors import ArchiveError, ClusterError
from torchyard.run.folder import runs_folder

_ARCHIVE_TIMEOUT_S = 60.0


class RunLister:
    """List the runs of all sources, again at each call. Not thread-safe.

    A run is listed once. This machine's folder counts before the archive, unless the run has moved to another machine;
    a Lease counts for a run that does not go on here, because its launcher is then another machine's.

    Errors. None is raised: a source that cannot be read is a problem of the list, and the others are listed.
    """

    def __init__(self, *, with_finished: bool, context: str | None) -> None:
        """`with_finished`: also the runs that have ended.

        `context`: of a cluster, "" for the current one; None for no cluster.
        """
        self._with_finished = with_finished
        self._context = context
        self._folders = FolderLister(with_finished=with_finished)

    def list_runs(self) -> RunList:
        problems: list[str] = []
        rows: dict[str, ListedRun] = {}
        try:
            rows |= {row.name: row for row in self._folders.list_runs()}
        except OSError as error:
            problems.append(f"the folder {runs_folder()} cannot be listed: {error.strerror or error}")
        try:
            rows |= {row.name: row for row in self._list_archived(rows)}
        except ArchiveError as error:
            problems.append(str(error))
        if self._context is not None:
            try:
                leased_runs = _list_leased(self._context)
                problems += leased_runs.problems
                for row in leased_runs.runs:
                    if row.name not in rows or rows[row.name].is_over:
                        rows[row.name] = row
            except ClusterError as error:
                problems.append(str(error))
        visible_rows = [row for row in rows.values() if self._with_finished or not row.is_over]
        return RunList(runs=tuple(sorted(visible_rows, key=_get_sort_key)), problems=tuple(problems))

    def _list_archived(self, local_rows: Mapping[str, ListedRun]) -> list[ListedRun]:
        """The runs that only the archive has, or that have moved from here. ArchiveError if it cannot be read."""
        store = open_store()
        if store is None:
            return []
        local_names = {row.name for row in local_rows.values() if row.state != "moved"}
        read = partial(list_archived_runs, store, local_names, with_finished=self._with_finished)
        return call_bounded(read, _ARCHIVE_TIMEOUT_S, store.url)


def _list_leased(context: str) -> RunList:
    """The runs of a cluster, in no order. ClusterError if it cannot be read."""
    from torchyard.cluster.lease import HOLDER_DEAD_AFTER_S  # only for a cluster: the client takes long to load
    from torchyard.cluster.leased_runs import list_leased_runs

    leased_runs = list_leased_runs(context)
    rows: list[ListedRun] = []
    for leased in leased_runs.runs:
        location = f"{leased.client.context or ''}/{leased.client.namespace}".lstrip("/")
        now = leased.client.now()
        rows.append(
            build_lease_row(leased.lease, leased.pods, now, holder_dead_after_s=HOLDER_DEAD_AFTER_S, location=location)
        )
    return RunList(runs=tuple(rows), problems=tuple(leased_runs.problems))


def _get_sort_key(row: ListedRun) -> tuple[float, str]:
    """What cannot be read first, then the newest."""
    return (-math.inf if row.started_at is None else -row.started_at, row.name)
