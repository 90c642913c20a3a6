"""A run that another machine started, for `--cluster`: its Lease, the access to its nodes, and copies of its logs."""

import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torchyard.cluster.access import ClusterAccess
from torchyard.cluster.leased_runs import LeasedRun, PodLogCopies, list_leased_runs, list_node_pods
from torchyard.common.escaping import strip_control_codes
from torchyard.interfaces import RunNodes
from torchyard.model.errors import AccessError, NoRunError, TorchyardError

_READ_INTERVAL_S = 0.05  # between two checks whether the logs are read
_ENDED_HINT = (
    "a run is not there any more once it has ended: its logs are then on the machine that started it, and in its "
    "archive, where the command without `--cluster` reads them"
)


def find_leased_run(name: str, context: str) -> LeasedRun:
    """The run's Lease. `context`: of the cluster; "" for the current one.

    NoRunError if there is none, TorchyardError if several namespaces have one, ClusterError if the Leases cannot be
    listed.
    """
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


def find_leased_nodes(name: str, context: str) -> RunNodes:
    """The nodes of a run's last attempt, as far as they have pods. Errors as in `find_leased_run`.

    AccessError if no node has a pod, ClusterError if the pods cannot be listed.
    """
    leased = find_leased_run(name, context)
    pods = {}
    for node, pod in list_node_pods(leased.client, name).node_pods:
        pods[node] = pod  # the last one of a node is the newest
    if not pods:
        raise AccessError(name, "it has no pod now: its job waits to be admitted, or its next attempt has not started")
    return RunNodes(tuple(pods), ClusterAccess(leased.client, lambda: pods))


@contextmanager
def copy_logs(leased: LeasedRun, *, is_following: bool, only_node: str | None = None) -> Iterator[PodLogCopies]:
    """Copies of the run's logs in a private folder, which is removed in the end, also after SIGTERM.

    Parameters as those of `PodLogCopies`.
    """
    old_handler = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        # A log may still be written while the folder is removed.
        with tempfile.TemporaryDirectory(prefix="torchyard-logs-", ignore_cleanup_errors=True) as folder:
            copies = PodLogCopies(
                leased.client, leased.name, Path(folder), is_following=is_following, only_node=only_node
            )
            try:
                yield copies
            finally:
                copies.stop()
    finally:
        signal.signal(signal.SIGTERM, old_handler)


def wait_for_copies(copies: PodLogCopies) -> None:
    """Wait until the copies have what the logs contained when `update` was called."""
    while not copies.is_complete():
        time.sleep(_READ_INTERVAL_S)


def report_losses(copies: PodLogCopies) -> None:
    """Report on stderr what the copies lack."""
    for node, loss in copies.list_losses().items():
        print(strip_control_codes(f"{node}: its log lacks {loss}"), file=sys.stderr)
