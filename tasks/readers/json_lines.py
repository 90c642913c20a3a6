"""json-lines: a program that prints one JSON object a line."""

import json
from collections.abc import Iterable
from typing import Any

from tasks.model import Metrics, Row
from tasks.readers._text import ROW_KEYS


def read_json_lines(lines: Iterable[str]) -> Metrics:
    """One JSON object a line. With an epoch, step, trial or size it is a row; else it is about the whole run.

    A resumed program says its last row again: the later one of the same epoch, step or trial counts.
    """
    rows: dict[Any, Row] = {}
    summary: Row = {}
    for line in lines:
        row = read_object(line)
        key = next((name for name in ROW_KEYS if name in row), None)
        if key:
            rows[key, row[key]] = row
        else:
            summary |= row
    return Metrics(rows=tuple(rows.values()), summary=summary)


def read_object(line: str) -> Row:
    """The plain values of a JSON object; nothing where the line is something else."""
    start = line.find("{")
    if start < 0 or line[:start].strip():
        return {}
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return {sound(key): sound(each) for key, each in value.items() if isinstance(each, float | int | str | bool)}


def sound(value: Any) -> Any:
    """A text that UTF-8 can hold: JSON may name half of a surrogate pair, and no report could be written then."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else value
