"""json-lines: the output of a program that prints one JSON object per line."""

from collections.abc import Iterable
from typing import Any

from torchyard.common.json_text import parse_json
from torchyard.metrics.rows import Rows, build_metrics
from torchyard.metrics.text import drop_non_finite, find_row_key, split_terminal_lines, strip_prefixes
from torchyard.model.run import Metrics, Row

_PLAIN_TYPES = frozenset({float, int, str, bool})
_CHECKPOINT_KEYS = {"checkpoint", "step"}


def read_json_lines(lines: Iterable[str]) -> Metrics:
    """Read one JSON object per line. With an epoch, step, trial or size it is a row; else it belongs to the summary.

    Lines of the same epoch, step, trial or size are one row, as a program prints the losses of training and validation;
    of a value that is printed twice the later one counts, because a resumed program prints its last rows again. Rows
    with different values of `collective` are not joined.
    """
    rows = Rows()
    summary: Row = {}
    for line in lines:
        row = parse_row(line)
        if not row:
            continue
        name = find_row_key(row)
        if name:
            key = (f"{row.get('collective', '')} {name}", row[name])
            rows.put(key, (rows.get(key) or {}) | row)
        else:
            summary |= row
    return build_metrics(rows, summary)


def parse_row(line: str) -> Row:
    """The values of a line; {} if it is not an object, or only the report of a checkpoint.

    Such a report, `{"checkpoint": PATH, "step": N}`, has no measurement: torchyard/diagnosis/checkpoints.py reads it in
    every format.
    """
    row = parse_object(line)
    if "checkpoint" in row and row.keys() <= _CHECKPOINT_KEYS:
        return {}
    return row


def parse_object(line: str) -> Row:
    """The numbers, strings and booleans of a JSON object; {} if the line is not an object.

    Prefixes of launchers and a progress bar may precede it. NaN and Infinity, which Python writes into JSON, become
    None; null is left out.
    """
    if line[:1] != "{":
        if "{" not in line:
            return {}
        *_, line = split_terminal_lines([line])
        line = strip_prefixes(line).lstrip()
        if line[:1] != "{":
            return {}
    try:
        data = parse_json(line)
    except ValueError:
        return {}
    fields = {key: drop_non_finite(value) for key, value in data.items() if type(value) in _PLAIN_TYPES}
    if "\\u" not in line:  # only an escape can make a surrogate
        return fields
    return {_repair_text(key): _repair_text(value) for key, value in fields.items()}


def _repair_text(value: Any) -> Any:
    """The value; in a text, what UTF-8 cannot encode is replaced by `?`.

    JSON may contain half of a surrogate pair, with which no report could be written.
    """
    if not isinstance(value, str):
        return value
    return value.encode(errors="replace").decode()
