"""Kueue's queues: a job waits suspended until its queue has room for it, and is suspended again if it must give it up.

Kueue has a Workload for each job that it manages, with the reason why the job waits and why it was evicted. A user who
may not read Workloads sees only that the job is suspended.
"""

import re
from collections.abc import Mapping
from typing import Any

from torchyard.diagnosis.event_rules import shorten_message
from torchyard.diagnosis.pod_facts import (
    find_condition,
    find_object,
    get_mapping,
    get_mappings,
    parse_timestamp,
    to_text,
)
from torchyard.diagnosis.queues.queue import Queue
from torchyard.model.causes.platform import PlatformCause
from torchyard.model.run import Failure

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
WORKLOAD_KIND = "Workload"
_UIDS = re.compile(r" \(UID: [^)]*\)")  # of the job that took the room


def find_workload(states: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The job's Workload among the observed objects; None if it is not known."""
    return find_object(states, WORKLOAD_KIND)


def read_suspended_job(job: Mapping[str, Any], workload: Mapping[str, Any] | None = None) -> Queue | None:
    """The queue of a suspended job; None if the job is not suspended, or shows no queue.

    The reason is a condition of the Workload, and of an AppWrapper itself. Without one a job shows only that it is
    suspended, which a user may have done, so that without the label of a queue it is not in one.
    """
    name = _get_queue_name(job) or None
    quota = find_condition(job, "QuotaReserved", "False") or find_condition(workload, "QuotaReserved", "False")
    message = to_text(quota.get("message")) if quota else ""
    if quota and message:
        since = parse_timestamp(quota.get("lastTransitionTime")) or None
        return Queue(name=name, missing=shorten_message(message), since=since)
    is_suspended = get_mapping(job, "status").get("phase") == "Suspended"
    if is_suspended or (name and find_condition(job, "Suspended")):
        return Queue(name=name, state=_describe_admission_check(workload) or None)
    return None


def _describe_admission_check(workload: Mapping[str, Any] | None) -> str:
    """`its admission check a is Pending: MESSAGE` of the first one that is not ready; "" if there is none."""
    for check in get_mappings(workload, "status", "admissionChecks"):
        state = to_text(check.get("state"))
        if state not in ("", "Ready"):
            message = shorten_message(check.get("message"))
            return f"its admission check {to_text(check.get('name'))} is {state}{f': {message}' if message else ''}"
    return ""


def find_time_limit(workload: Mapping[str, Any] | None) -> Failure | None:
    """The failure of a job that Kueue has deactivated at its maximum execution time; None if it has not."""
    eviction = find_condition(workload, "Evicted") or {}
    has_reason = "MaximumExecutionTimeExceeded" in to_text(eviction.get("reason"))
    is_over = has_reason or "exceeding the maximum execution time" in to_text(eviction.get("message"))
    if not is_over or not describe_deactivation(workload):
        return None
    return Failure(cause=PlatformCause.TIME_LIMIT, sentence=f"Kueue ended the job: {_read_reason(eviction)}")


def find_eviction(job: Mapping[str, Any], workload: Mapping[str, Any] | None, *, has_run: bool) -> Failure | None:
    """Why a suspended job lost its place, which a new attempt asks for again; None if it has not.

    A job keeps its place if it has not been admitted yet, if a user has suspended it, or if an administrator has
    deactivated its Workload. `has_run`: whether a pod of the job has started.
    """
    name = _get_queue_name(job)
    eviction = find_condition(workload, "Evicted")
    if not name or describe_deactivation(workload):
        return None
    if workload is None and has_run:
        eviction = find_condition(job, "Suspended") or {}
        sentence = f"Kueue suspended the job in queue {name}"
    elif eviction and (has_run or eviction.get("reason") == "Preempted"):
        sentence = f"Kueue evicted the job from queue {name}: {_read_reason(eviction)}"
    else:
        return None
    stopped_at = parse_timestamp(eviction.get("lastTransitionTime")) or None
    return Failure(cause=PlatformCause.PREEMPTED, sentence=sentence, stopped_at=stopped_at)


def describe_deactivation(workload: Mapping[str, Any] | None) -> str:
    """Why Kueue does not admit a job again by itself; "" if it does."""
    if get_mapping(workload, "spec").get("active") is not False:
        return ""
    reason = _read_reason(find_condition(workload, "Evicted") or {})
    return f"its Workload is deactivated{f': {reason}' if reason else ''}"


def _get_queue_name(job: Mapping[str, Any]) -> str:
    return to_text(get_mapping(job, "metadata", "labels").get(QUEUE_LABEL))


def _read_reason(condition: Mapping[str, Any]) -> str:
    """Kueue's words, without the ids and the paths of queues that follow them."""
    message = shorten_message(to_text(condition.get("message"))).partition(";")[0]
    reason = _UIDS.sub("", message)
    return reason[:1].lower() + reason[1:]
