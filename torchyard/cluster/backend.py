"""A plan of objects, carried out in a Kubernetes cluster."""

import time
from collections.abc import Callable, Sequence

from torchyard.backend import Elsewhere, Poll
from torchyard.cluster import create, delete, lease, takeover
from torchyard.cluster.checks.cluster import await_door, check_cluster
from torchyard.cluster.job_watch import ClusterWatch
from torchyard.cluster.lease_renewal import renewer
from torchyard.common.log import log
from torchyard.common.own_trouble import lasting
from torchyard.diagnosis.host_facts import judge
from torchyard.diagnosis.pod_facts import seconds
from torchyard.host.facts import FACTS
from torchyard.model.errors import OwnedError, TorchyardError
from torchyard.model.plan import ManifestPlan, Plan
from torchyard.model.profile import Deadlines
from torchyard.model.requirements import Check, WritableFolder
from torchyard.model.run import End, Handle


class ClusterBackend:
    """See Backend. The run's Lease is its owner, and holds what another machine must know."""

    def __init__(self, plan: ManifestPlan) -> None:
        self._plan = plan

    def locate(self) -> Plan:
        return create.located(self._plan)

    def reach(self) -> None:
        await_door(self._plan)

    def check(self) -> tuple[Check, ...]:
        here = [need for need in self._plan.requires if isinstance(need, WritableFolder)]
        folders = (judge(need, FACTS[need.kind](need.model_dump())) for need in here)
        return (*folders, *check_cluster(self._plan))

    def prepare(self) -> Plan:
        return create.permitted(self._plan)

    def start_store(self) -> None:
        create.serve(self._plan)

    def submit(self, deadlines: Deadlines, since: float | None) -> Handle:
        plan = self._plan
        job, created = create.create(plan) if since is None else lasting(lambda: create.create(plan))
        kind, where, count = plan.main["kind"], plan.cluster.namespace, len(plan.nodes)
        log().info("%s %s %s/%s: %d pods", "created" if created else "attached to", kind, where, plan.job, count)
        made = seconds(job["metadata"].get("creationTimestamp")) or time.time()  # of one that is gone nobody knows it
        age = 0.0 if created else max(time.time() - (since or made), 0.0)
        return Handle(plan=plan, deadlines=deadlines, created=created, submitted_at=made, age=age)

    def watch(self, on_poll: Poll) -> ClusterWatch:
        return ClusterWatch(self._plan, on_poll)

    def stop(self) -> None:
        delete.delete(self._plan, self._plan.main)

    def remove(self) -> list[str]:
        return delete.remove(self._plan)

    def release(self) -> None:
        self.abandon_lease()
        lease.release(self._plan)

    def check_owner(self) -> None:
        renewer().check(self._plan)

    def refuse_carried(self) -> None:
        lease.refuse_carried(self._plan)

    def abandon_lease(self) -> None:
        renewer().drop(self._plan)

    def record_ending(self, end: End, sentence: str) -> None:
        try:
            lease.tell_ending(self._plan, end, sentence)
        except OwnedError:
            raise
        except TorchyardError as error:
            log().debug("the Lease does not say how the run ends: %s", error)

    def take_over(self, plan_of: Callable[[int], Plan], begun: Sequence[int]) -> Elsewhere | None:
        return takeover.take_over(self._plan, plan_of, begun)
