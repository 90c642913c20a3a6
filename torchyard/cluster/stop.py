"""Stops a job that no process waits for any more, and reads its pods' logs until the pods are gone."""

import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from torchyard.cluster.delete import delete_owned_pods, read_grace_period, stop_job
from torchyard.cluster.job_watch import ClusterWatch
from torchyard.cluster.lease import confirm_ownership
from torchyard.cluster.listing import list_labelled_objects
from torchyard.diagnosis.pod_facts import get_mappings, is_being_deleted, to_text
from torchyard.kube.client import get_cluster_client
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan

STOP_OUTAGE_TIMEOUT_S = 30.0  # after so long without a response of the API server, the logs are not read any further
LOG_IDLE_TIMEOUT_S = 10.0  # an incomplete log without a new byte for so long is not read any further
END_MARGIN_S = 5.0  # that pods may take to disappear, besides their grace period
_POLL_INTERVAL_S = 0.25


def stop_and_read(plan: ManifestPlan) -> dict[str, str]:
    """Delete the job, and read its logs until its pods are gone; return what is missing from them, by node.

    Order. The watch is opened first, because a pod's log is deleted with the pod: the followers read the lines that a
    program prints between SIGTERM and SIGKILL. Then logs of ended pods are read to their end, the job is deleted, and
    the pods have their grace period and `END_MARGIN_S` to disappear. A pod that remains is left to `remove`.

    Raises ClusterError if the API server refuses a request, or does not respond for `STOP_OUTAGE_TIMEOUT_S`;
    RunInUseError if another process has taken the run over.
    """
    last_seen_at = time.monotonic()

    def check_outage() -> None:
        """Raise ClusterError if the job could not be observed for too long. Called at each poll."""
        nonlocal last_seen_at
        if watch.is_fully_observed():
            last_seen_at = time.monotonic()
        elif time.monotonic() - last_seen_at > STOP_OUTAGE_TIMEOUT_S:
            host = get_cluster_client(plan.cluster).host
            raise ClusterError(host, "watch the job", f"no response for {STOP_OUTAGE_TIMEOUT_S:.0f} s", 0)

    needed_kinds = tuple(watched for watched in plan.watch if watched.kind in (plan.main["kind"], "Pod"))
    watch = ClusterWatch(plan.model_copy(update={"watch": needed_kinds}), check_outage)
    with watch:
        watch.drain_ended_logs(check_outage, idle_timeout_s=LOG_IDLE_TIMEOUT_S)
        stop_job(plan)
        deadline = time.monotonic() + read_grace_period(plan) + END_MARGIN_S
        while watch.has_pods() and time.monotonic() < deadline:
            if watch.poll(timeout_s=_POLL_INTERVAL_S):
                _delete_owned_pods(plan, watch.list_pods())
            check_outage()
        watch.drain_ended_logs(check_outage, idle_timeout_s=LOG_IDLE_TIMEOUT_S)  # a pod that remains may still print
        return watch.lost_logs()


def _delete_owned_pods(plan: ManifestPlan, watched_pods: Iterable[Mapping[str, Any]]) -> None:
    """Delete the job's pods once their owners are being deleted.

    `watched_pods`: as the watch has seen them last. They only show what to list: pods and owners are read again now,
    because a watch may be behind, and does not see two pods of one node.
    """
    owner_kinds = set()
    for pod in watched_pods:
        if not is_being_deleted(pod):
            for owner in get_mappings(pod, "metadata", "ownerReferences"):
                owner_kinds.add((to_text(owner.get("apiVersion")), to_text(owner.get("kind"))))
    known_kinds = {(kind.api, kind.kind) for kind in (*plan.watch, *plan.made)}
    if owner_kinds & known_kinds:
        client = get_cluster_client(plan.cluster)
        listing = list_labelled_objects(client, (("v1", "Pod"), *(owner_kinds & known_kinds)), plan.labels)
        delete_owned_pods(client, plan.labels, listing.objects, partial(confirm_ownership, plan))
