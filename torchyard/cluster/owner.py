"""Records in a cluster who owns a run: its Lease."""

from collections.abc import Callable, Sequence

from torchyard.cluster import lease, takeover
from torchyard.cluster.lease_renewal import get_renewer
from torchyard.common.log import get_log
from torchyard.interfaces import Owner, RemoteAttempt
from torchyard.model.errors import RunInUseError, TorchyardError
from torchyard.model.plan import ManifestPlan, Plan
from torchyard.model.run import End


class ClusterOwner(Owner):
    """The `Owner` of a cluster's run: a Lease, which also records what the run's next process needs to continue.

    Threads of `lease_renewal` renew it from `Job.start_store`, `Job.submit` or `take_over` on, until `abandon`,
    `hand_over` or `release`.
    """

    def __init__(self, plan: ManifestPlan) -> None:
        self._plan = plan

    def take_over(self, build_plan: Callable[[int], Plan], started_attempts: Sequence[int]) -> RemoteAttempt | None:
        return takeover.take_over_run(self._plan, build_plan, started_attempts)

    def check(self) -> None:
        get_renewer().check(self._plan)

    def check_not_elsewhere(self) -> None:
        lease.check_not_held_elsewhere(self._plan)

    def record_ending(self, end: End, sentence: str) -> None:
        try:
            lease.record_ending(self._plan, end, sentence)
        except RunInUseError:
            raise
        except TorchyardError as error:
            get_log().debug("cannot record on the Lease how the run ends: %s", error)

    def abandon(self) -> None:
        get_renewer().drop(self._plan)

    def hand_over(self) -> None:
        self.abandon()
        try:
            lease.hand_lease_over(self._plan)
        except TorchyardError as error:  # the next process then waits until the Lease has expired
            get_log().debug("cannot hand over the Lease of %s: %s", self._plan.run, error)

    def release(self) -> None:
        self.abandon()
        lease.release_lease(self._plan)
