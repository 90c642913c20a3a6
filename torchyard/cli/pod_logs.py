"""`torchyard logs RUN --cluster`: the output of a run that another machine started, from its pods."""

import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torchyard.cli.logs import follow_output, print_lines, report_missing_rank
from torchyard.cluster.leased_runs import LeasedRun, PodLogCopies, list_leased_runs
from torchyard.common.escaping import strip_control_codes
from torchyard.listing.pod_commands import find_rank_layout
from torchyard.model.errors import NoRunError, TorchyardError
from torchyard.steps.rank_output import LogSelection, RankLayout, check_selection, read_output

_STATE_INTERVAL_S = 2.0  # between two readings of the Lease and the pods
_READ_INTERVAL_S = 0.05  # between two checks whether the logs are read
_ENDED_HINT = "a run is not there any more once it has ended"


def show_pod_logs(name: str, selection: LogSelection, *, context: str, is_following: bool) -> int:
    """Print the selected lines of the pods of a run's last attempt. Returns 0.

    context: of the cluster; "" for the current one.
    is_following: until the run is over, also the lines of later attempts; or until Ctrl-C, which is raised as
        KeyboardInterrupt.

    NoRunError if the cluster has no Lease of the run, ClusterError if it cannot be read, TorchyardError if the job has
    no such node.
    """
    leased = _find_leased_run(name, context)
    with _make_temporary_folder() as folder:
        copies = PodLogCopies(leased.client, name, folder, is_following=is_following, only_node=selection.node)
        with _stopped_at_the_end(copies):
            if is_following:
                follow_output(_PodRun(name, copies), selection)
                print(f"{name} has ended", file=sys.stderr)
            else:
                _print_current_output(name, copies, selection)
    return 0


def _find_leased_run(name: str, context: str) -> LeasedRun:
    """The run's Lease. NoRunError if there is none, TorchyardError if several namespaces have one."""
    leased_runs = list_leased_runs(context, name)
    if not leased_runs.runs:
        for problem in leased_runs.problems:
            print(strip_control_codes(problem), file=sys.stderr)
        location = f"the cluster of context {context}" if context else "the cluster of the current context"
        list_command = f"torchyard ps --cluster {context}".rstrip()
        raise NoRunError(name, (location,), list_command=list_command, hint=_ENDED_HINT)
    if len(leased_runs.runs) > 1:
        namespaces = ", ".join(leased.client.namespace for leased in leased_runs.runs)
        raise TorchyardError(f"several namespaces have a run {name}: {namespaces}; use a context with one of them")
    return leased_runs.runs[0]


@contextmanager
def _make_temporary_folder() -> Iterator[Path]:
    """A private folder for the copies of logs, which is removed in the end, also after SIGTERM."""
    old_handler = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        # A log may still be written while the folder is removed.
        with tempfile.TemporaryDirectory(prefix="torchyard-logs-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
    finally:
        signal.signal(signal.SIGTERM, old_handler)


@contextmanager
def _stopped_at_the_end(copies: PodLogCopies) -> Iterator[None]:
    """Stop the copying in any case, before its folder is removed."""
    try:
        yield
    finally:
        copies.stop()


def _print_current_output(name: str, copies: PodLogCopies, selection: LogSelection) -> None:
    """Print what the logs contain now."""
    copies.update()
    if not copies.paths:
        print(f"{name} has no pod yet", file=sys.stderr)
        return
    check_selection(copies.paths, selection)
    while not copies.is_complete():
        time.sleep(_READ_INTERVAL_S)
    line_count = print_lines(read_output(copies.paths, find_rank_layout(copies.first_pod), selection))
    report_missing_rank(name, selection, line_count)
    for node, loss in copies.list_losses().items():
        print(f"{node}: its log lacks {loss}", file=sys.stderr)


class _PodRun:
    """A run of another machine, as `FollowedRun`."""

    def __init__(self, name: str, copies: PodLogCopies) -> None:
        self.name = name
        self.attempt = 0
        self.paths: Mapping[str, str] = {}
        self.is_final = False
        self.layout = RankLayout("teed")
        self._copies = copies
        self._next_update_at = 0.0  # monotonic seconds

    def update(self) -> None:
        """Errors as those of `PodLogCopies.update`."""
        if time.monotonic() < self._next_update_at:
            return
        self._next_update_at = time.monotonic() + _STATE_INTERVAL_S
        self._copies.update()
        self.attempt = self._copies.attempt
        self.paths = dict(self._copies.paths)
        self.layout = find_rank_layout(self._copies.first_pod)
        self.is_final = self._copies.is_over and self._copies.is_complete()
