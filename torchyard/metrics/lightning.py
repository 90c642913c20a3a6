"""lightning: the progress bars and the table of results of PyTorch Lightning, drawn by tqdm or by rich.

Epoch 3: 100%|██████████| 10/10 [00:00<00:00, 95.12it/s, v_num=0, train_loss=0.120]
Epoch 3/9  ━━━━━━━━━━━━━━━━━ 10/10 0:00:00 • 0:00:00 95.12it/s v_num: 0.000
                                                               train_loss: 0.120
"""

import re

from torchyard.metrics.text import NUMBER_PATTERN, TerminalReader, parse_finite
from torchyard.model.run import Row

_COUNT = r"([0-9]{1,9})"
_HEAD_PATTERN = re.compile(rf"(?<![\w])Epoch {_COUNT}(?:/(-?{_COUNT}))?(?=:|\s)")
_BATCH_PATTERN = re.compile(rf"(?<=[|━╸╺ ]) {_COUNT}/{_COUNT}(?= )")
_VALUE_PATTERN = re.compile(
    rf"(?<![\w/])([A-Za-z_][\w/.-]{{0,60}})(?:=|: )({NUMBER_PATTERN})(?:\.0)?(?![\w.])"
)  # nan.0
_WRAPPED_PATTERN = re.compile(rf"\s{{8,}}([A-Za-z_][\w/.-]{{0,60}}): ({NUMBER_PATTERN})\s*")
_RESULT_PATTERN = re.compile(rf"│\s+([A-Za-z_][\w/.-]{{0,60}})\s+│\s+({NUMBER_PATTERN})\s+│")
_VERSION_NAME = "v_num"  # of the folder of the logger


class LightningReader(TerminalReader):
    """Read one output line by line, in order. rich wraps the values of a bar into the lines below it."""

    def __init__(self) -> None:
        self._bar: Row = {}  # the epoch of the last bar, for the wrapped values below it

    def parse_line(self, line: str) -> Row:
        """The last state of a bar in a line, or a result of a test; {} if it has neither."""
        if "Epoch " in line and ("it/s" in line or "s/it" in line):
            return self._parse_bar(line)
        if line.startswith("│"):
            result = _RESULT_PATTERN.match(line)
            return {result[1]: parse_finite(result[2])} if result else {}
        wrapped = _WRAPPED_PATTERN.fullmatch(line) if self._bar and line.startswith(" ") else None
        if wrapped:
            return self._bar | {wrapped[1]: parse_finite(wrapped[2])}
        return {}

    def _parse_bar(self, line: str) -> Row:
        """The state of an epoch's bar; {} at batch 0, where it still shows the values of the epoch before."""
        head = _HEAD_PATTERN.search(line)
        if head is None:
            return {}
        self._bar = {"epoch": int(head[1])}
        if head[3]:
            self._bar["last_epoch"] = int(head[3])
        row: Row = dict(self._bar)
        if batch := _BATCH_PATTERN.search(line, head.end()):
            if batch[1] == "0":
                return {}
            row["batch"] = int(batch[1])
            row["batches"] = int(batch[2])
        values_text, _, _ = line[head.end() :].partition("]")  # behind tqdm's bar another line may follow
        for name, text in _VALUE_PATTERN.findall(values_text):
            if name != _VERSION_NAME:
                row[name] = parse_finite(text)
        return row
