"""mnist: the output of Shuai-Xie/mnist-pytorchjob-example, and of the MNIST examples of Kubeflow and PyTorch.

PyTorch's quickstart is supported as well. Its batches do not name their epoch: the line `Epoch 2` is above them.
"""

import re
from collections.abc import Iterable

from torchyard.metrics.rows import Rows, build_metrics
from torchyard.metrics.text import NUMBER_PATTERN, parse_finite, split_terminal_lines
from torchyard.model.run import Metrics, Row

_COUNT = r"([0-9]{1,9})"
# A batch of the training: `[10/118]` counts batches, `[640/60000 (1%)]` samples.
_BATCH = rf"{_COUNT}/{_COUNT}(?:\s*\([^)]{{0,9}}\))?"
_TRAINED_PATTERN = re.compile(rf"Train Epoch:\s*{_COUNT}\s*\[{_BATCH}\]\s*[Ll]oss[:=]\s*({NUMBER_PATTERN})")
# The accuracy over the whole test set: in percent if it is called acc, 0 to 1 if it is called accuracy.
_TESTED_PATTERN = re.compile(rf"Test Epoch:\s*{_COUNT},\s*acc=({NUMBER_PATTERN})")
_BEST_PATTERN = re.compile(rf"test acc:\s*({NUMBER_PATTERN}),\s*best acc:\s*({NUMBER_PATTERN})")
_TEST_SET_PATTERN = re.compile(rf"Test set: Average loss:\s*({NUMBER_PATTERN}),\s*Accuracy:\s*{_COUNT}/{_COUNT}")
_ACCURACY_PATTERN = re.compile(rf"(?<!\w)accuracy=({NUMBER_PATTERN})")
_QUICK_EPOCH_PATTERN = re.compile(rf"(?<!\S)Epoch {_COUNT}\s*$")
_QUICK_BATCH_PATTERN = re.compile(rf"(?<!\S)loss: ({NUMBER_PATTERN})\s+\[\s*{_COUNT}/{_COUNT}\]")
_QUICK_TEST_PATTERN = re.compile(rf"(?<!\S)Accuracy: ({NUMBER_PATTERN})%, Avg loss: ({NUMBER_PATTERN})")
_INIT_PATTERN = re.compile(rf"\[init\] == local rank: [0-9]+, global rank: [0-9]+, world size: {_COUNT} ==")
_ARGUMENT_PATTERN = re.compile(rf"'(epochs|batch_size)':\s*{_COUNT}")
_END_PATTERN = re.compile(rf"(?<!\w)(prepare seconds|training seconds|best_acc):\s*({NUMBER_PATTERN})")


def read_mnist(lines: Iterable[str]) -> Metrics:
    """Read one row per epoch: the last loss of its training and the accuracy of its test.

    `acc` and `best_acc` are in percent, `accuracy` is 0 to 1, times are in seconds. Scores before the first epoch
    belong to the summary.
    """
    rows = Rows()
    summary: Row = {}
    row: Row = {}
    current_epoch: Row = {}  # of the last line `Epoch 2`, for batches that do not name their epoch
    for line in split_terminal_lines(lines):
        if "Epoch " in line and (header := _QUICK_EPOCH_PATTERN.search(line)):
            current_epoch = {"epoch": int(header[1])}
            continue
        batch = current_epoch | _parse_batch(line)
        scores = _parse_scores(line)
        if batch.keys() >= {"epoch", "batch"}:
            row = _put_batch(rows, batch)
        elif scores:
            row = _find_or_add_row(rows, row, scores)
            if row:
                row.update(scores)
            else:
                summary.update(scores)
        summary |= _parse_run_summary(line)
    return build_metrics(rows, summary)


def _put_batch(rows: Rows, batch: Row) -> Row:
    """Put the loss of a batch into the row of its epoch; return the row."""
    key = ("epoch", batch["epoch"])
    row: Row = {}
    if batch["batch"]:  # batch 0 starts the epoch (again, after a restart): the scores of the earlier try are dropped
        row |= rows.get(key) or {}
    row["epoch"] = batch["epoch"]
    row["loss"] = batch["loss"]
    rows.put(key, row)
    return row


def _find_or_add_row(rows: Rows, last_row: Row, scores: Row) -> Row:
    """The row that scores belong to: that of the epoch that they name, or else the last one."""
    if "epoch" not in scores:
        return last_row
    key = ("epoch", scores["epoch"])
    row = rows.get(key)
    if row is None:  # no batch of this epoch was printed
        row = {"epoch": scores["epoch"]}
        rows.put(key, row)
    return row


def _parse_batch(line: str) -> Row:
    """A training batch: `batch` of `batches`, counted in batches or samples as the program does; {} for other lines.

    Some programs do not print its `epoch`. A loss that is nan or infinite is None.
    """
    if "Train Epoch:" in line and (match := _TRAINED_PATTERN.search(line)):
        return {
            "epoch": int(match[1]),
            "batch": int(match[2]),
            "batches": int(match[3]),
            "loss": parse_finite(match[4]),
        }
    if "loss: " in line and (match := _QUICK_BATCH_PATTERN.search(line)):
        return {"batch": int(match[2]), "batches": int(match[3]), "loss": parse_finite(match[1])}
    return {}


def _parse_scores(line: str) -> Row:
    """The scores from the test of an epoch; {} for other lines."""
    if "acc" not in line and "Acc" not in line:
        return {}
    if match := _TESTED_PATTERN.search(line):
        return {"epoch": int(match[1]), "acc": parse_finite(match[2])}
    if match := _BEST_PATTERN.search(line):
        return {"acc": parse_finite(match[1]), "best_acc": parse_finite(match[2])}
    if match := _TEST_SET_PATTERN.search(line):
        correct = int(match[2])
        total = int(match[3])
        return {"test_loss": parse_finite(match[1]), "accuracy": correct / total if total else None}
    if match := _QUICK_TEST_PATTERN.search(line):
        percent = parse_finite(match[1])
        return {"test_loss": parse_finite(match[2]), "accuracy": None if percent is None else round(percent / 100, 6)}
    match = _ACCURACY_PATTERN.search(line)
    return {"accuracy": parse_finite(match[1])} if match else {}


def _parse_run_summary(line: str) -> Row:
    """Values of the whole run, which are printed at its start and at its end; {} for other lines."""
    summary: Row = {}
    if "'" in line:
        for key, value in _ARGUMENT_PATTERN.findall(line):
            summary[key] = int(value)
    if "[init]" in line and (match := _INIT_PATTERN.search(line)):
        summary["world_size"] = int(match[1])
    if (" seconds:" in line or "best_acc:" in line) and (match := _END_PATTERN.search(line)):
        summary[match[1].replace(" ", "_")] = parse_finite(match[2])
    return summary


def read_mnist_line(line: str) -> Row:
    """The last batch or scores in a line; {} if it has neither."""
    last_row: Row = {}
    for terminal_line in split_terminal_lines([line]):
        last_row = _parse_batch(terminal_line) or _parse_scores(terminal_line) or last_row
    return last_row
