"""Stops a job that nobody waits for any more, and reads what its pods print until they are gone."""

import time

from torchyard.cluster.delete import delete_object, read_grace_period
from torchyard.cluster.job_watch import ClusterWatch
from torchyard.kube.client import get_cluster_client
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan

_OUTAGE_TIMEOUT_S = 30.0  # without an answer of the API server, after which the logs are not waited for
_LOG_SILENCE_S = 10.0  # an incomplete log that brings no byte for so long is given up
_END_MARGIN_S = 5.0  # that pods may take to go, besides their grace period
_POLL_INTERVAL_S = 0.25


def stop_and_read(plan: ManifestPlan) -> dict[str, str]:
    """Delete the job, and read its logs until its pods are gone; returns what is missing from them, by node.

    The watch is opened first, because a pod that goes takes its log with it. ClusterError if the API server refuses, or
    does not answer for 30 s.
    """
    answered_at = time.monotonic()

    def check_outage() -> None:
        nonlocal answered_at
        if watch.is_fully_seen():
            answered_at = time.monotonic()
        elif time.monotonic() - answered_at > _OUTAGE_TIMEOUT_S:
            host, said = get_cluster_client(plan.cluster).host, f"no answer for {_OUTAGE_TIMEOUT_S:.0f} s"
            raise ClusterError(host, "watch the job", said, 0)

    watch = ClusterWatch(plan, check_outage)
    with watch:
        watch.drain_ended_logs(_LOG_SILENCE_S, check_outage)
        delete_object(plan, plan.main)
        until = time.monotonic() + read_grace_period(plan) + _END_MARGIN_S
        while watch.has_pods() and time.monotonic() < until:
            watch.poll(_POLL_INTERVAL_S)
            check_outage()
        watch.drain_ended_logs(_LOG_SILENCE_S, check_outage)  # a pod that stays may go on printing
        return watch.lost_logs()
