"""Carries out a plan of objects in a Kubernetes cluster."""

import time
from collections.abc import Callable, Sequence

from torchyard.backend import PollCallback, RemoteAttempt
from torchyard.cluster import create, delete, lease, takeover
from torchyard.cluster.checks.cluster import await_api_server, check_cluster
from torchyard.cluster.job_watch import ClusterWatch
from torchyard.cluster.lease_renewal import get_renewer
from torchyard.cluster.stop import stop_and_read
from torchyard.common.local_errors import OUTAGE_TIMEOUT_S, retry_step
from torchyard.common.log import get_log
from torchyard.diagnosis.pod_facts import parse_timestamp
from torchyard.host.facts import probe_folder
from torchyard.model.errors import RunInUseError, TorchyardError
from torchyard.model.finding import Finding
from torchyard.model.plan import ManifestPlan, Plan
from torchyard.model.profile import Deadlines
from torchyard.model.requirements import WritableFolder
from torchyard.model.run import End, Handle


class ClusterBackend:
    """The `Backend` of a cluster; see its docstring for the methods.

    The run's Lease owns the run's objects, and records what the next process of the run needs to continue. All objects
    are found by name and label: nothing is stored in this process except the renewal of the Lease, which threads of
    `lease_renewal` do from `start_store` or `submit` on, until `abandon_lease`, `hand_over` or `release`.
    """

    def __init__(self, plan: ManifestPlan) -> None:
        self._plan = plan

    def locate(self) -> Plan:
        return create.resolve_cluster(self._plan)

    def reach(self) -> None:
        await_api_server(self._plan)

    def check(self) -> tuple[Finding, ...]:
        checks: list[Finding] = []
        for requirement in self._plan.requires:
            if isinstance(requirement, WritableFolder):  # a folder of this machine; check_cluster has the others
                checks.append(Finding(**probe_folder(requirement.to_probe())))
        checks += check_cluster(self._plan)
        return tuple(checks)

    def prepare(self) -> Plan:
        return create.drop_forbidden_objects(self._plan)

    def start_store(self) -> None:
        create.create_store(self._plan)

    def submit(self, deadlines: Deadlines, submitted_at: float | None) -> Handle:
        plan = self._plan
        # Without a time limit for a job that exists: giving up would end a job that runs well during an outage.
        job, created = retry_step(OUTAGE_TIMEOUT_S if submitted_at is None else None)(create.create_job)(plan)
        action = "created" if created else "attached to"
        kind = plan.main["kind"]
        get_log().info("%s %s %s/%s: %d pods", action, kind, plan.cluster.namespace, plan.job, len(plan.nodes))
        # A job that is gone is returned as planned, without a time stamp.
        created_at = parse_timestamp(job["metadata"].get("creationTimestamp")) or time.time()
        age_s = 0.0 if created else max(time.time() - (submitted_at or created_at), 0.0)
        return Handle(plan=plan, deadlines=deadlines, created=created, submitted_at=created_at, age_s=age_s)

    def watch(self, on_poll: PollCallback) -> ClusterWatch:
        return ClusterWatch(self._plan, on_poll)

    def stop(self) -> None:
        delete.delete_object(self._plan, self._plan.main)

    def stop_unwatched(self) -> dict[str, str]:
        try:
            return stop_and_read(self._plan)
        except RunInUseError:
            raise
        except (TorchyardError, OSError, RuntimeError, MemoryError) as error:
            get_log().warning("the last lines of %s may be missing: %s", self._plan.job, error)
            return {node: f"possibly the last lines: {error}" for node in self._plan.nodes}

    def remove(self) -> list[str]:
        return delete.delete_all_objects(self._plan)

    def release(self) -> None:
        self.abandon_lease()
        lease.release_lease(self._plan)

    def check_owner(self) -> None:
        get_renewer().check(self._plan)

    def check_not_owned_elsewhere(self) -> None:
        lease.check_not_held_elsewhere(self._plan)

    def abandon_lease(self) -> None:
        get_renewer().drop(self._plan)

    def hand_over(self) -> None:
        self.abandon_lease()
        try:
            lease.hand_lease_over(self._plan)
        except TorchyardError as error:  # the next process then waits until the Lease has expired
            get_log().debug("cannot hand over the Lease of %s: %s", self._plan.run, error)

    def record_ending(self, end: End, sentence: str) -> None:
        try:
            lease.record_ending(self._plan, end, sentence)
        except RunInUseError:
            raise
        except TorchyardError as error:
            get_log().debug("cannot record on the Lease how the run ends: %s", error)

    def take_over(self, build_plan: Callable[[int], Plan], started_attempts: Sequence[int]) -> RemoteAttempt | None:
        return takeover.take_over_run(self._plan, build_plan, started_attempts)
