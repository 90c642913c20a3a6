"""What the events of a job's objects mean, and when they were seen."""

import functools
import math
import re
from typing import Any, NamedTuple

from torchyard.diagnosis.pod_facts import get_mapping, parse_timestamp, to_text
from torchyard.diagnosis.pod_reasons import MAX_MESSAGE_CHARS, PodCause

_GO_MESSAGE = re.compile(r'Message:"((?:[^"\\]|\\.)*)"')


class EventRule(NamedTuple):
    """What an event means. If it persists beyond the cause's patience, it ends a job that has not started.

    reason_pattern: matches the whole reason of the event.
    message_pattern: is searched in its message; "" matches any.
    """

    reason_pattern: str
    message_pattern: str
    cause: PodCause


_VOLUME_EVENTS = "FailedMount|FailedAttachVolume|FailedMapVolume"
# Kubelets report these about a pod; controllers report the last ones about an object that should have pods.
EVENT_RULES = (
    EventRule(
        _VOLUME_EVENTS,
        r'(?:secret|configmap|persistentvolumeclaim) "?[^ ]* ?not found|non-existent',
        PodCause("volume-mount", "one of its volumes names an object that does not exist", patience_s=90),
    ),
    EventRule(_VOLUME_EVENTS, "", PodCause("volume-mount", "one of its volumes cannot be mounted", True, math.inf)),
    EventRule(
        "FailedCreatePodSandBox",
        "(?i)network-?attachment.{0,200}(?:not found|cannot find|does not exist)|cannot find a network-attachment",
        PodCause("pod-network", "a network that it names does not exist", patience_s=90),
    ),
    EventRule(
        "FailedCreatePodSandBox|NetworkNotReady",
        "",
        PodCause("pod-network", "its node cannot connect it to a network", True, math.inf),
    ),
    EventRule(
        r"FailedCreate\w*",
        r"exceeded quota.*used: (?:[^ =,]+=0,)*[^ =,]+=0, ",
        PodCause("quota", "its pods may not be created, each requests more than the namespace's quota", patience_s=60),
    ),
    EventRule(
        r"FailedCreate\w*",
        "exceeded quota",
        PodCause("quota", "its pods may not be created, the namespace's quota is used up", patience_s=math.inf),
    ),
    EventRule(
        r"FailedCreate\w*",
        "admission webhook|ValidatingAdmissionPolicy|violates PodSecurity",
        PodCause("pod-refused", "the cluster's admission rules refuse its pods", patience_s=60),
    ),
    EventRule(r"FailedCreate\w*", "", PodCause("pod-refused", "its pods cannot be created", patience_s=60)),
)


@functools.lru_cache(maxsize=256)
def find_event_rules(reason: str) -> tuple[EventRule, ...]:
    """The rules that an event with this reason may match; empty for most warnings."""
    return tuple(rule for rule in EVENT_RULES if re.fullmatch(rule.reason_pattern, reason))


def is_rule_match(event: Any, rule: EventRule) -> bool:
    if rule not in find_event_rules(to_text(event.get("reason"))):
        return False
    return bool(re.search(rule.message_pattern, to_text(event.get("message"))))


def shorten_message(message: Any) -> str:
    """A controller's message in one line; of an error that Go printed with all its fields, only the message."""
    text = to_text(message)
    go_message = _GO_MESSAGE.search(text)
    if go_message:
        text = go_message[1].replace('\\"', '"')
    return re.sub(r"\s+", " ", text)[:MAX_MESSAGE_CHARS]


def get_first_seen(event: Any) -> float:
    """When an event was first seen, in seconds since the epoch; 0 if it does not contain that."""
    created_at = get_mapping(event, "metadata").get("creationTimestamp")
    for text in (event.get("firstTimestamp"), event.get("eventTime"), created_at):
        timestamp = parse_timestamp(text)
        if timestamp:
            return timestamp
    return 0.0


def get_last_seen(event: Any) -> float:
    """When an event was last seen, in seconds since the epoch; 0 if it does not contain that."""
    last_observed = get_mapping(event, "series").get("lastObservedTime")
    return max(get_first_seen(event), parse_timestamp(event.get("lastTimestamp")), parse_timestamp(last_observed))
