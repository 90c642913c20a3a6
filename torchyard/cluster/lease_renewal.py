"""Renews the Leases of the runs that this process owns, with a few threads for any number of runs.

The interval is RENEW_INTERVAL_S of lease.py; docs/kubernetes.md gives it to users.
"""

import functools
import threading
import time

from torchyard.cluster import lease
from torchyard.cluster.lease import RENEW_INTERVAL_S
from torchyard.common.log import get_log
from torchyard.kube.client import KubeObject
from torchyard.model.errors import ClusterError, RunInUseError
from torchyard.model.plan import ManifestPlan

_THREAD_COUNT = 4  # one thread could need longer than the interval for hundreds of renewals by a slow API server
_RENEWER_LOCK = threading.Lock()


class LeaseRenewer:
    """Knows the runs that this process owns, and those that another process has taken over."""

    def __init__(self) -> None:
        self._lost: dict[str, RunInUseError] = {}
        self._due: dict[str, tuple[float, ManifestPlan]] = {}
        self._news = threading.Condition()

    def add(self, plan: ManifestPlan) -> None:
        """Renew a Lease from now on; the caller has just acquired it."""
        with self._news:
            self._lost.pop(plan.run, None)
            self._due[plan.run] = time.monotonic() + RENEW_INTERVAL_S, plan
            self._news.notify()

    def drop(self, plan: ManifestPlan) -> None:
        with self._news:
            self._due.pop(plan.run, None)

    def check(self, plan: ManifestPlan) -> None:
        """Raise RunInUseError if another process has taken the run over."""
        if lost := self._lost.get(plan.run):
            raise lost

    def run(self) -> None:
        """Renew one Lease after the other, forever."""
        while True:
            plan = self._next()
            try:
                lease.renew_lease(plan)
            except RunInUseError as error:
                self._lost[plan.run] = error
                self.drop(plan)
            except ClusterError as error:  # away, or no longer allowed: the watches report it
                get_log().debug("the Lease of %s is not renewed: %s", plan.run, error)
            except Exception:  # this process's own trouble, such as too few descriptors: other runs need this thread
                get_log().exception("the Lease of %s is not renewed", plan.run)

    def _next(self) -> ManifestPlan:
        """Wait until a renewal is due; return its plan."""
        with self._news:
            while True:
                now = time.monotonic()
                due, plan = min(self._due.values(), key=lambda each: each[0], default=(now + RENEW_INTERVAL_S, None))
                if plan and due <= now:
                    self._due[plan.run] = now + RENEW_INTERVAL_S, plan
                    return plan
                self._news.wait(due - now)


def hold_lease(plan: ManifestPlan) -> KubeObject:
    """Acquire a run's Lease, and renew it until the run is over. Raises RunInUseError if a living process holds it."""
    held = lease.acquire_lease(plan)
    get_renewer().add(plan)
    return held


def get_renewer() -> LeaseRenewer:
    """The renewer of this process: one, even if two waits start at once."""
    with _RENEWER_LOCK:
        return _start_renewer()


@functools.cache
def _start_renewer() -> LeaseRenewer:
    made = LeaseRenewer()
    for _ in range(_THREAD_COUNT):
        threading.Thread(target=made.run, daemon=True, name="leases").start()
    return made
