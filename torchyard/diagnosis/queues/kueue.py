"""Kueue's queues: from the job itself, which Kueue suspends until its queue has room for it."""

from collections.abc import Mapping
from typing import Any

from torchyard.diagnosis.event_rules import shorten_message
from torchyard.diagnosis.pod_facts import find_condition, get_mapping, parse_timestamp, to_text
from torchyard.diagnosis.queues.queue import Queue

_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


def read_suspended_job(job: Mapping[str, Any]) -> Queue | None:
    """The queue of a suspended job; None if the job is not suspended, or shows no queue.

    An AppWrapper has Kueue's own condition with the reason. Other kinds show only that they are suspended, which a user
    may have done, so that without the label of a queue they are not in one.
    """
    name = to_text(get_mapping(job, "metadata", "labels").get(_QUEUE_LABEL)) or None
    quota = find_condition(job, "QuotaReserved", "False")
    message = to_text(quota.get("message")) if quota else ""
    if quota and message:
        since = parse_timestamp(quota.get("lastTransitionTime")) or None
        return Queue(name=name, missing=shorten_message(message), since=since)
    is_suspended = get_mapping(job, "status").get("phase") == "Suspended"
    if is_suspended or (name and find_condition(job, "Suspended")):
        return Queue(name=name)
    return None
