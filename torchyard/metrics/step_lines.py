"""step-lines: programs that print one line per step or epoch, which names it first and then its values.

iter 100: loss 2.3105, time 12.31ms, mfu 3.02%                                      nanoGPT
step: 10  loss: 10.7069  memory: 30.99GiB(32.62%)  tps: 7,034  mfu: 41.19%          torchtitan
step 00010/21400 (0.05%) | loss: 9.123456 | dt: 400.12ms | tok/sec: 1,310,304       nanochat
iteration  10/ 100 | elapsed time per iteration (ms): 812.5 | lm loss: 1.06E+01     Megatron-LM
Epoch [1/5], Step [100/600], Loss: 0.2531                                           many tutorials
"""

import re

from torchyard.metrics.text import TerminalReader, parse_number
from torchyard.model.run import Row

_COUNT = r"([0-9]{1,12})"
_HEAD_PATTERN = re.compile(
    rf"(?<![\w-])(?:(validat\w{{1,5}}) )?(epoch|step|iter|iteration)[:\s]?\s*\[?{_COUNT}(?:\s?/\s*{_COUNT})?\]?"
    r"(?:\s*\([^()]{1,20}\))?(?:\s*[:|,\]]|\s+-|\s{2,}|\s(?=[\w/]+[:=]))",
    re.IGNORECASE,
)
_NUMBER = r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3}){1,6}|[0-9]{1,20})(?:\.[0-9]{0,20})?(?:e[-+]?[0-9]{1,3})?|[-+]?(?:nan|inf)\b"
# A name of up to five words, its unit in parentheses, and its value. What follows the value is its unit: ms, %, GiB.
_VALUE_PATTERN = re.compile(
    r"(?<![\w/.-])([a-z][\w/-]{0,40}(?: [a-z][\w/-]{0,40}){0,4})(?: \((\w{1,5})\))?(?:\s*[:=]\s*|\s+)\[?"
    rf"({_NUMBER})(ms\b)?",
    re.IGNORECASE,
)
_TOTAL_PATTERN = re.compile(rf"\b(?:total steps |max_iters\s*=\s*){_COUNT}\b")  # torchtitan's, and nanoGPT's


class StepLineReader(TerminalReader):
    """Read one output line by line, in order. A line without a loss has no row.

    The total is that of the line, or the one that the program has printed before: `steps` or `epochs`.
    """

    def __init__(self) -> None:
        self._total_steps: int | None = None

    def parse_line(self, line: str) -> Row:
        """The values of a line, the last one if it was redrawn; {} if it has none."""
        if ("total steps" in line or "max_iters" in line) and (total := _TOTAL_PATTERN.search(line)):
            self._total_steps = int(total[1])
            return {}
        head = _HEAD_PATTERN.search(line) if "oss" in line or "LOSS" in line else None
        if head is None:
            return {}
        values = _parse_values(line[head.end() :])
        if not any("loss" in name for name in values):
            return {}
        if head[1]:
            values = {f"validation_{name}": value for name, value in values.items()}
        key = "epoch" if head[2].lower() == "epoch" else "step"
        row: Row = {key: int(head[3])}
        if head[4]:
            row[f"{key}s"] = int(head[4])
        elif key == "step" and self._total_steps is not None:
            row["steps"] = self._total_steps
        return row | values


def _parse_values(text: str) -> Row:
    """The values of a text by name, as in `{"loss": 2.31, "time_ms": 12.31}`; None for nan and infinity."""
    values: Row = {}
    for match in _VALUE_PATTERN.finditer(text):
        unit = match[2] or match[4]
        name = match[1].lower().replace(" ", "_")
        if unit:
            name = f"{name}_{unit}"
        value = parse_number(match[3].replace(",", ""))
        if name == "mfu" and isinstance(value, float) and value < 0:
            continue  # nanoGPT prints -100 % until it has measured a few iterations
        values.setdefault(name, value)
    return values
