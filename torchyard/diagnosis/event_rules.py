"""What the events of a job's objects mean, and when they were seen."""

import functools
import re
from typing import Any

from torchyard.diagnosis.pod_facts import get_mapping, parse_timestamp, to_text
from torchyard.diagnosis.pod_reasons import MAX_MESSAGE_CHARS
from torchyard.model.causes.cause import EventRule
from torchyard.model.causes.events import EVENT_RULES

_GO_MESSAGE = re.compile(r'Message:"((?:[^"\\]|\\.)*)"')


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
