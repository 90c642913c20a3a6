"""`torchyard logs RUN --cluster`: the output of a run that another machine started, from its pods."""

import sys
import time
from collections.abc import Mapping

from torchyard.cli.leased_run import copy_logs, find_leased_run, report_losses, wait_for_copies
from torchyard.cli.logs import follow_output, print_lines, report_missing_rank
from torchyard.cluster.leased_runs import PodLogCopies
from torchyard.listing.pod_commands import find_rank_layout
from torchyard.steps.rank_output import LogSelection, RankLayout, check_selection, read_output

_STATE_INTERVAL_S = 2.0  # between two readings of the Lease and the pods


def show_pod_logs(name: str, selection: LogSelection, *, context: str, is_following: bool) -> int:
    """Print the selected lines of the pods of a run's last attempt. Returns 0.

    context: of the cluster; "" for the current one.
    is_following: until the run is over, also the lines of later attempts; or until Ctrl-C, which is raised as
        KeyboardInterrupt.

    Errors as in `find_leased_run`; SelectionError if the job has no such node or rank.
    """
    leased = find_leased_run(name, context)
    with copy_logs(leased, is_following=is_following, only_node=selection.node) as copies:
        if is_following:
            follow_output(_PodRun(name, copies), selection)
            print(f"{name} has ended", file=sys.stderr)
        else:
            _print_current_output(name, copies, selection)
    return 0


def _print_current_output(name: str, copies: PodLogCopies, selection: LogSelection) -> None:
    """Print what the logs contain now."""
    copies.update()
    if not copies.paths:
        print(f"{name} has no pod yet", file=sys.stderr)
        return
    check_selection(copies.paths, selection, find_rank_layout(copies.first_pod))
    wait_for_copies(copies)
    line_count = print_lines(read_output(copies.paths, find_rank_layout(copies.first_pod), selection))
    report_missing_rank(name, selection, line_count)
    report_losses(copies)


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
