"""Rules of events: the specific message precedes the event's general meaning."""

import re

from torchyard.model.causes.events import EVENT_RULES


def test_rule_for_any_message_is_the_last_of_its_event() -> None:
    """After a rule that any message matches, no other rule of the same event can match."""
    patterns = [rule.reason_pattern for rule in EVENT_RULES]
    for index, rule in enumerate(EVENT_RULES):
        if not rule.message_pattern:
            assert rule.reason_pattern not in patterns[index + 1 :]


def test_patterns_are_valid() -> None:
    """The patterns, which are compiled only when an event is read, are regular expressions."""
    for rule in EVENT_RULES:
        assert re.compile(rule.reason_pattern).fullmatch("Scheduled") is None
        assert re.compile(rule.message_pattern).search("") is None or not rule.message_pattern
