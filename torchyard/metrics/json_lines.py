"""json-lines: the output of a program that prints one JSON object per line."""

import json
from collections.abc import Iterable
from typing import Any

from torchyard.metrics.rows import Rows, build_metrics
from torchyard.metrics.text import ROW_KEYS
from torchyard.model.run import Metrics, Row

_PLAIN_TYPES = frozenset({float, int, str, bool})


def read_json_lines(lines: Iterable[str]) -> Metrics:
    """Read one JSON object per line. With an epoch, step, trial or size it is a row; else it is about the whole run.

    A resumed program prints its last row again: the later one of the same epoch, step, trial or size counts, and each
    `collective` has its own.
    """
    rows = Rows()
    summary: Row = {}
    for line in lines:
        row = parse_object(line)
        if not row:
            continue
        key = next((name for name in ROW_KEYS if name in row), None)
        if key:
            rows.put((f"{row.get('collective', '')} {key}", row[key]), row)
        else:
            summary |= row
    return build_metrics(rows, summary)


def parse_object(line: str) -> Row:
    """The plain values of a JSON object; empty if the line is something else."""
    if line[:1] != "{" and line.lstrip()[:1] != "{":
        return {}
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    fields = {key: field for key, field in data.items() if type(field) in _PLAIN_TYPES}
    return {_repair_text(key): _repair_text(field) for key, field in fields.items()} if "\\u" in line else fields


def _repair_text(value: Any) -> Any:
    """A text that UTF-8 can encode: JSON may contain half of a surrogate pair, which no report could hold."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else value
