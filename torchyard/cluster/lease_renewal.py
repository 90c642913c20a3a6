"""Renews the Leases of the runs that this process owns, with a few threads for any number of runs.

The interval is RENEW_INTERVAL_S of lease.py; docs/kubernetes.md gives it to users.
"""

import functools
import threading
import time
from typing import NamedTuple

from torchyard.cluster import lease
from torchyard.cluster.lease import RENEW_INTERVAL_S
from torchyard.common.log import get_log
from torchyard.kube.client import KubeObject
from torchyard.model.errors import ClusterError, RunInUseError
from torchyard.model.plan import ManifestPlan

_THREAD_COUNT = 4  # one thread could need longer than the interval for hundreds of renewals by a slow API server
_RENEWER_LOCK = threading.Lock()


class _Renewal(NamedTuple):
    """When a Lease is renewed next, in monotonic seconds."""

    due_at: float
    plan: ManifestPlan


class LeaseRenewer:
    """Renew the Leases of the runs that this process owns, each every `RENEW_INTERVAL_S`.

    Threads. `_THREAD_COUNT` daemon threads execute `run` for as long as the process lives. Each takes the renewal that
    is due next, and schedules it again before it sends it, so that another thread does not take it too. The other
    methods are called by the threads of the runs. `_changed` guards `_pending` and wakes a waiting thread.

    Errors. A renewal that fails is logged and tried again at the next interval. If another process has taken a run
    over, its Lease is dropped, and `check` raises that RunInUseError until `add` is called again.
    """

    def __init__(self) -> None:
        self._taken_over: dict[str, RunInUseError] = {}  # by run
        self._pending: dict[str, _Renewal] = {}  # by run
        self._changed = threading.Condition()

    def add(self, plan: ManifestPlan) -> None:
        """Renew a Lease from now on; the caller has just acquired it."""
        with self._changed:
            self._taken_over.pop(plan.run, None)
            self._pending[plan.run] = _Renewal(time.monotonic() + RENEW_INTERVAL_S, plan)
            self._changed.notify()

    def drop(self, plan: ManifestPlan) -> None:
        """Stop renewing a Lease; one that is not renewed is ignored."""
        with self._changed:
            self._pending.pop(plan.run, None)

    def list_plans(self) -> list[ManifestPlan]:
        """The plans whose Leases are renewed now."""
        with self._changed:
            return [renewal.plan for renewal in self._pending.values()]

    def check(self, plan: ManifestPlan) -> None:
        """Raise RunInUseError if another process has taken the run over."""
        error = self._taken_over.get(plan.run)
        if error:
            raise error

    def run(self) -> None:
        """Renew one Lease after the other, forever."""
        while True:
            plan = self._await_next()
            try:
                lease.renew_lease(plan)
            except RunInUseError as error:
                self._taken_over[plan.run] = error
                self.drop(plan)
            except ClusterError as error:  # the API server is away or refuses: the watches report it to the user
                get_log().debug("cannot renew the Lease of %s: %s", plan.run, error)
            except Exception:  # a fault of this process, such as too few descriptors: other runs need this thread
                get_log().exception("cannot renew the Lease of %s", plan.run)

    def _await_next(self) -> ManifestPlan:
        """Wait until a renewal is due; return its plan."""
        with self._changed:
            while True:
                now = time.monotonic()
                renewal = min(self._pending.values(), key=lambda pending: pending.due_at, default=None)
                if renewal and renewal.due_at <= now:
                    self._pending[renewal.plan.run] = _Renewal(now + RENEW_INTERVAL_S, renewal.plan)
                    return renewal.plan
                self._changed.wait(renewal.due_at - now if renewal else RENEW_INTERVAL_S)


def hold_lease(plan: ManifestPlan) -> KubeObject:
    """Acquire a run's Lease and renew it until it is dropped; return it.

    Raises RunInUseError if another living process holds it.
    """
    acquired = lease.acquire_lease(plan)
    get_renewer().add(plan)
    return acquired


def get_renewer() -> LeaseRenewer:
    """The renewer of this process, started by the first call; the same one, even if two threads call this at once."""
    with _RENEWER_LOCK:
        return _start_renewer()


@functools.cache
def _start_renewer() -> LeaseRenewer:
    renewer = LeaseRenewer()
    for _ in range(_THREAD_COUNT):
        threading.Thread(target=renewer.run, daemon=True, name="leases").start()
    return renewer
