"""Carries out a plan of objects in a Kubernetes cluster."""

import time
from pathlib import Path

from torchyard.cluster import create, delete
from torchyard.cluster.checks.cluster import await_api_server, check_cluster
from torchyard.cluster.job_watch import ClusterWatch
from torchyard.cluster.logs.log_follower import LOG_READERS
from torchyard.cluster.stop import stop_and_read
from torchyard.code.archive import keep_archive
from torchyard.code.object_store import check_store
from torchyard.common.local_errors import OUTAGE_TIMEOUT_S, retry_step
from torchyard.common.log import get_log
from torchyard.diagnosis.pod_facts import parse_timestamp
from torchyard.host.facts import probe_folder
from torchyard.interfaces import PollCallback
from torchyard.kube.client import get_cluster_client
from torchyard.model.errors import RunInUseError, TorchyardError
from torchyard.model.finding import Finding
from torchyard.model.plan import ManifestPlan, Plan
from torchyard.model.profile import Deadlines
from torchyard.model.requirements import WritableFolder
from torchyard.model.run import Handle


class ClusterJob:
    """The `Job` of a cluster. Its objects are found by name and label: nothing is stored in this process.

    `start_store` and `submit` acquire the run's Lease, which owns the objects (see ClusterOwner).
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
        if self._plan.code and self._plan.code.url:
            checks.append(check_store(self._plan.code))
        checks += check_cluster(self._plan)
        return tuple(checks)

    def prepare(self) -> Plan:
        keep_archive(self._plan.code)
        return create.drop_forbidden_objects(self._plan)

    def start_store(self) -> None:
        create.create_store(self._plan)

    def submit(self, deadlines: Deadlines, submitted_at: float | None) -> Handle:
        plan = self._plan
        # Without a time limit for a job that exists: giving up would end a job that runs well during an outage.
        was_submitted = submitted_at is not None
        create_job = retry_step(None if was_submitted else OUTAGE_TIMEOUT_S)(create.create_job)
        job, created = create_job(plan, was_submitted=was_submitted)
        action = "created" if created else "attached to"
        kind = plan.main["kind"]
        get_log().info("%s %s %s/%s: %d pods", action, kind, plan.cluster.namespace, plan.job, len(plan.nodes))
        # Both times are the API server's: this machine's clock may have been wrong at the submit, or be wrong now.
        now = get_cluster_client(plan.cluster).now()
        created_at = parse_timestamp(job["metadata"].get("creationTimestamp")) or now  # a job that is gone has none
        age_s = 0.0 if created else max(now - created_at, 0.0)
        return Handle(plan=plan, deadlines=deadlines, created=created, submitted_at=created_at, age_s=age_s)

    def now(self) -> float:
        try:
            return get_cluster_client(self._plan.cluster).now()
        except (TorchyardError, OSError):
            return time.time()

    def watch(self, on_poll: PollCallback) -> ClusterWatch:
        return ClusterWatch(self._plan, on_poll)

    def stop(self) -> None:
        delete.stop_job(self._plan)

    def kill(self) -> None:
        delete.end_pods(self._plan)

    def stop_unwatched(self) -> dict[str, str]:
        try:
            return stop_and_read(self._plan)
        except RunInUseError:
            raise
        except (TorchyardError, OSError, RuntimeError, MemoryError) as error:
            get_log().warning("the last lines of %s may be missing: %s", self._plan.job, error)
            return {node: f"possibly the last lines: {error}" for node in self._plan.nodes}

    def list_live_processes(self, *, ended_after_s: float) -> list[str]:
        """None: a cluster's job has no processes on hosts."""
        return []

    def remove(self) -> list[str]:
        leftovers = delete.delete_all_objects(self._plan)
        LOG_READERS.get(get_cluster_client(self._plan.cluster)).stop(Path(self._plan.folder))
        return leftovers
