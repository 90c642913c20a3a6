"""JSON that anybody may have written: lines of logs, annotations, responses of hosts."""

import json
import re
from typing import Any

_MAX_LEVELS = 200  # of lists and objects in each other
# A string that is cut off is one token too: to search in it again from each of its quotes would take forever.
_TOKENS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)


def parse_json(text: str | bytes) -> Any:
    """The value, as `json.loads` returns it. ValueError for a text that is not JSON, and for more than 200 levels.

    json.loads goes to the end of the stack for a thousand levels: its RecursionError can be caught, but a destructor
    that runs at this moment fails as well.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogatepass")
    if text.count("[") + text.count("{") > _MAX_LEVELS and _count_levels(text) > _MAX_LEVELS:
        raise ValueError(f"more than {_MAX_LEVELS} levels")
    return json.loads(text)


def _count_levels(text: str) -> int:
    """How deep the lists and objects of a text are nested; brackets in strings do not count."""
    levels = 0
    most_levels = 0
    for match in _TOKENS.finditer(text):
        token = match[0]
        if token in "[{":
            levels += 1
            most_levels = max(levels, most_levels)
        elif token in "]}":
            levels -= 1
    return most_levels
