"""huggingface: the dicts that the Trainer of Hugging Face's transformers prints, and those of trl.

    {'loss': 2.1043, 'grad_norm': 1.02, 'learning_rate': 5e-05, 'epoch': 0.5}

Version 5 prints the values as texts ('2.104'). The Trainer's progress bar contains the number of steps.
"""

import re

from torchyard.metrics.text import TerminalReader, parse_number
from torchyard.model.run import Row

_VALUE_PATTERN = re.compile(
    r"'([\w./@-]{1,80})': ('?)([-+]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?(?:e[-+]?[0-9]{1,3})?|nan|inf))\2(?=[,}])"
)
_BAR_PATTERN = re.compile(r"\s*[0-9]{1,3}%\|[^|]{0,200}\| ([0-9]{1,9})/([0-9]{1,9}) \[")  # one without a description
_TOTAL_PATTERN = re.compile(r"\b(Num Epochs|Total optimization steps) = ([0-9,]{1,15})(?![0-9,])")


class HuggingFaceReader(TerminalReader):
    """Read one output line by line, in order.

    The bar of the training is the first one without a description. The bars of evaluations, which have another number
    of steps, appear inside it; after it is complete, another bar may be that of the next training.
    """

    def __init__(self) -> None:
        self._totals: Row = {}  # `epochs`, and `steps` with the `step` of the bar
        self._step: int | None = None

    def parse_line(self, line: str) -> Row:
        """The values of the last dict in a line; {} if it has none. A dict of the whole run has no epoch."""
        if "%|" in line and (bar := _BAR_PATTERN.match(line)):
            self._update_step(int(bar[1]), int(bar[2]))
        if " = " in line and (total := _TOTAL_PATTERN.search(line)):
            key = "epochs" if total[1] == "Num Epochs" else "steps"
            self._totals[key] = int(total[2].replace(",", "") or 0)
        if "{'" not in line:
            return {}
        row: Row = {}
        for name, _, text in _VALUE_PATTERN.findall(line[line.rindex("{'") :]):
            row[name] = parse_number(text)
        if "train_runtime" in row:
            row.pop("epoch", None)
            return row
        if "epoch" not in row:
            return row if any("loss" in name for name in row) else {}
        if "loss" in row:  # the dict of a step of the training, not of an evaluation
            row |= self._totals
            if self._step is not None:
                row["step"] = self._step
        return row

    def _update_step(self, step: int, steps: int) -> None:
        is_complete = self._step is not None and self._step == self._totals.get("steps")
        if is_complete or self._totals.get("steps") in (None, steps):
            self._totals["steps"] = steps
            self._step = step
