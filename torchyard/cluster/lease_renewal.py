"""Renews the Leases of the runs that this process carries: a few threads, however many they are."""

import functools
import threading
import time

from torchyard.cluster import lease
from torchyard.common.log import log
from torchyard.kube.client import Object
from torchyard.model.errors import ClusterError, OwnedError
from torchyard.model.plan import ManifestPlan

EVERY = 40.0  # seconds between two renewals
AT_ONCE = 4  # one after the other, hundreds of renewals would take longer than that where the API server is slow
MAKING = threading.Lock()


class Renewer:
    """Knows the runs that are carried, and those that another process has taken over."""

    def __init__(self) -> None:
        self._lost: dict[str, OwnedError] = {}
        self._due: dict[str, tuple[float, ManifestPlan]] = {}
        self._news = threading.Condition()

    def add(self, plan: ManifestPlan) -> None:
        """Renew a Lease from now on; whoever adds it has just taken it."""
        with self._news:
            self._lost.pop(plan.run, None)
            self._due[plan.run] = time.monotonic() + EVERY, plan
            self._news.notify()

    def drop(self, plan: ManifestPlan) -> None:
        with self._news:
            self._due.pop(plan.run, None)

    def check(self, plan: ManifestPlan) -> None:
        """OwnedError where another process has taken the run over since."""
        if lost := self._lost.get(plan.run):
            raise lost

    def run(self) -> None:
        """Renew one Lease after the other, for ever."""
        while True:
            plan = self._next()
            try:
                lease.renew(plan)
            except OwnedError as error:
                self._lost[plan.run] = error
                self.drop(plan)
            except ClusterError as error:  # away, or not allowed any more: the watches tell it
                log().debug("the Lease of %s is not renewed: %s", plan.run, error)
            except Exception:  # this process's own trouble, such as too few descriptors: other runs need this thread
                log().exception("the Lease of %s is not renewed", plan.run)

    def _next(self) -> ManifestPlan:
        """Wait for the plan whose turn it is."""
        with self._news:
            while True:
                now = time.monotonic()
                due, plan = min(self._due.values(), key=lambda each: each[0], default=(now + EVERY, None))
                if plan and due <= now:
                    self._due[plan.run] = now + EVERY, plan
                    return plan
                self._news.wait(due - now)


def hold(plan: ManifestPlan) -> Object:
    """Take a run's Lease, and renew it until the run is over. OwnedError where another living process holds it."""
    held = lease.take(plan)
    renewer().add(plan)
    return held


def renewer() -> Renewer:
    """The one of this process, also where two waits begin at once."""
    with MAKING:
        return make()


@functools.cache
def make() -> Renewer:
    made = Renewer()
    for _ in range(AT_ONCE):
        threading.Thread(target=made.run, daemon=True, name="leases").start()
    return made
