"""imagenet: the trainings of image classifiers by pytorch/examples, torchvision's references, timm, DeiT and Swin.

    Epoch: [0][  10/5005]   Time  0.213 ( 0.402)   Loss 6.9e+00 (7.0e+00)   Acc@1   0.00 (  0.10)     pytorch/examples
     *   Acc@1 0.100 Acc@5 0.500
    Epoch: [0]  [  10/5005]  eta: 1:02:03  lr: 0.1  loss: 6.91 (7.01)  acc1: 0.00 (0.10)              torchvision
    Train: 0 [  50/1251 (  4%)]  Loss: 6.9 (7.0)  Time: 0.320s,  400.32/s  LR: 1.000e-05              timm

Each value is printed with its average over the epoch so far, in parentheses, which is what a row contains.
"""

import re

from torchyard.metrics.text import TerminalReader, parse_finite
from torchyard.model.run import Row

_COUNT = r"([0-9]{1,9})"
_TRAIN_PATTERN = re.compile(
    rf"(?<![\w*])(?:Epoch|Train):\s*\[?\s*{_COUNT}(?:/{_COUNT})?\]?\s*\[\s*{_COUNT}/{_COUNT}(?:\s*\([^()]{{1,9}}\))?\]"
)
_TEST_PATTERN = re.compile(r"(?<![\w*])Test[\w ()]{0,20}:|(?<![\w*])\*(?=\s+(?:Acc|Prec)@1)")
_NUMBER = r"[-+]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?(?:e[-+]?[0-9]{1,3})?|nan|inf)"
_VALUE_PATTERN = re.compile(
    rf"(?<![\w@])(loss|acc@?[0-9]|prec@?[0-9]|lr|grad_norm)[:\s]\s*({_NUMBER})%?(?:\s*\(\s*({_NUMBER})\s*\))?",
    re.IGNORECASE,
)
_TOTAL_PATTERN = re.compile(rf"(?:\bScheduled epochs: |\bNamespace\(.*\bepochs=){_COUNT}\b")


class ImageNetReader(TerminalReader):
    """Read one output line by line, in order: scores belong to the last epoch that was trained.

    The scores of the test have names that start with `test_`. Epochs are counted from 0: a row has `last_epoch` if the
    program has printed their number.
    """

    def __init__(self) -> None:
        self._epoch: Row = {}
        self._last_epoch: Row = {}

    def parse_line(self, line: str) -> Row:
        """The last batch or scores in a line; {} if it has neither."""
        if "pochs" in line and (total := _TOTAL_PATTERN.search(line)):
            self._last_epoch = {"last_epoch": int(total[1]) - 1}
            return {}
        if "[" in line and (batch := _TRAIN_PATTERN.search(line)):
            if batch[2]:
                self._last_epoch = {"last_epoch": int(batch[2]) - 1}
            self._epoch = {"epoch": int(batch[1])}
            row = self._epoch | self._last_epoch | {"batch": int(batch[3]), "batches": int(batch[4])}
            return row | _parse_values(line[batch.end() :], prefix="")
        if ("@" in line or "acc1" in line) and (test := _TEST_PATTERN.search(line)):
            scores = _parse_values(line[test.end() :], prefix="test_")
            return self._epoch | scores if scores else {}
        return {}


def _parse_values(text: str, *, prefix: str) -> Row:
    """The averages of a text by name, such as `acc1` for `Acc@1`, or the value if it has no average."""
    values: Row = {}
    for name, value, average in _VALUE_PATTERN.findall(text):
        values[prefix + name.lower().replace("@", "")] = parse_finite(average or value)
    return values
