"""Volcano's queues: from the PodGroup of a job, the events about it, and the Queue objects."""

from collections.abc import Iterable, Mapping
from typing import Any

from torchyard.diagnosis.event_rules import shorten_message
from torchyard.diagnosis.pod_facts import find_object, get_mapping, get_mappings, parse_timestamp, to_text
from torchyard.diagnosis.queues.queue import Queue

# Volcano reports other Unschedulable events at every healthy start.
_QUOTA_MESSAGES = ("quota insufficient", "overused")
_PENDING_HINT = ": the queue is full or closed, or the cluster too small for it"


def read_pod_group(states: Mapping[str, Mapping[str, Any]], job_events: Iterable[Any]) -> Queue | None:
    """The queue of a job without pods; None if neither a PodGroup nor an event shows one.

    While a PodGroup is Pending, only the events contain the reason. `job_events`: about the job or its PodGroup.
    """
    quota_message = _find_quota_message(job_events)
    group = find_object(states, "PodGroup")
    if group is None:
        return Queue(missing=shorten_message(quota_message)) if quota_message else None
    phase = to_text(get_mapping(group, "status").get("phase"))
    is_pending = phase in ("", "Pending")
    message = (quota_message or _get_newest_message(group)) if is_pending else ""
    hint = _PENDING_HINT if phase == "Pending" and not message else ""
    return Queue(
        name=to_text(get_mapping(group, "spec").get("queue")) or None,
        missing=shorten_message(message) if message else None,
        since=parse_timestamp(get_mapping(group, "metadata").get("creationTimestamp")) or None,
        state=f"its PodGroup is {phase or 'new'}{hint}",
        is_admitted=not is_pending,
    )


def _find_quota_message(job_events: Iterable[Any]) -> str | None:
    """The message of an event about a quota that is used up; None if no event reports one."""
    for event in job_events:
        if event.get("reason") == "Unschedulable":
            message = to_text(event.get("message"))
            if any(part in message for part in _QUOTA_MESSAGES):
                return message
    return None


def _get_newest_message(group: Mapping[str, Any]) -> str:
    """The message of the newest true condition that is no success; "" if there is none.

    A condition is not set to False when it stops being true.
    """
    conditions = get_mappings(group, "status", "conditions")
    current_conditions = [
        condition
        for condition in conditions
        if condition.get("status") == "True" and condition.get("type") != "Scheduled"
    ]
    newest: Mapping[str, Any] = max(current_conditions, key=_get_transition_text, default={})
    return to_text(newest.get("message"))


def _get_transition_text(condition: Mapping[str, Any]) -> str:
    return str(condition.get("lastTransitionTime"))


def read_volcano_queue(name: str, queue: Mapping[str, Any] | None, all_queues: Iterable[Any]) -> Queue:
    """Whether a Queue accepts jobs, and which do. `queue`: its object; None if it does not exist."""
    state = get_mapping(queue, "status").get("state")
    if state == "Open":
        return Queue(name=name)
    open_queues = []
    for other_queue in all_queues:
        if get_mapping(other_queue, "status").get("state") == "Open":
            open_queues.append(to_text(get_mapping(other_queue, "metadata").get("name")))
    if queue is None:
        refusal = "does not exist"
    elif state:
        refusal = f"is {state}"
    else:
        refusal = "has no state yet"
    return Queue(name=name, refusal=refusal, open_queues=tuple(sorted(open_queues)))
