"""mnist: what the usual MNIST programs print, those of Shuai-Xie/mnist-pytorchjob-example, Kubeflow and PyTorch."""

import re
from collections.abc import Iterable

from torchyard.metrics.rows import Rows, measured
from torchyard.metrics.text import NUMBER, finite, parts
from torchyard.model.run import Metrics, Row

COUNT = r"([0-9]{1,9})"
# A batch of the training: `[10/118]` counts batches, `[640/60000 (1%)]` samples.
BATCH = rf"{COUNT}/{COUNT}(?:\s*\([^)]{{0,9}}\))?"
TRAINED = re.compile(rf"Train Epoch:\s*{COUNT}\s*\[{BATCH}\]\s*[Ll]oss[:=]\s*({NUMBER})")
# The accuracy over all of the test set: in percent where it is called acc, 0 to 1 where it is called accuracy.
TESTED = re.compile(rf"Test Epoch:\s*{COUNT},\s*acc=({NUMBER})")
BETTER = re.compile(rf"test acc:\s*({NUMBER}),\s*best acc:\s*({NUMBER})")
COUNTED = re.compile(rf"Test set: Average loss:\s*({NUMBER}),\s*Accuracy:\s*{COUNT}/{COUNT}")
ACCURACY = re.compile(rf"(?<!\w)accuracy=({NUMBER})")
INIT = re.compile(rf"\[init\] == local rank: [0-9]+, global rank: [0-9]+, world size: {COUNT} ==")
ARGUMENT = re.compile(rf"'(epochs|batch_size)':\s*{COUNT}")
ENDED = re.compile(rf"(?<!\w)(prepare seconds|training seconds|best_acc):\s*({NUMBER})")


def read_mnist(lines: Iterable[str]) -> Metrics:
    """One row per epoch: the last loss of its training and the accuracy of its test.

    `acc` and `best_acc` are in percent, `accuracy` is 0 to 1, seconds are seconds.
    """
    rows = Rows()
    summary: Row = {}
    row: Row = {}
    for part in parts(lines):
        batch, scores = read_batch(part), read_scores(part)
        if batch:
            key = ("epoch", batch["epoch"])
            begun = (rows.get(key) or {}) if batch["batch"] else {}
            row = begun | {"epoch": batch["epoch"], "loss": batch["loss"]}
            rows.put(key, row)
        elif scores:
            row = begin_row(rows, row, scores)
            (row if row else summary).update(scores)
        summary |= read_run(part)
    return measured(rows, summary)


def begin_row(rows: Rows, row: Row, scores: Row) -> Row:
    """The row that scores belong to: that of the epoch that they name, else the last one."""
    if "epoch" not in scores:
        return row
    key = ("epoch", scores["epoch"])
    if (known := rows.get(key)) is None:
        known = {}
        rows.put(key, known)
    return known


def read_batch(part: str) -> Row:
    """A batch of the training: `batch` of `batches`, in whatever the program counts."""
    match = TRAINED.search(part) if "Train Epoch:" in part else None
    if match is None:
        return {}
    return {"epoch": int(match[1]), "batch": int(match[2]), "batches": int(match[3]), "loss": finite(match[4])}


def read_scores(part: str) -> Row:
    """What the test of an epoch gave."""
    if "acc" not in part and "Acc" not in part:
        return {}
    if match := TESTED.search(part):
        return {"epoch": int(match[1]), "acc": finite(match[2])}
    if match := BETTER.search(part):
        return {"acc": finite(match[1]), "best_acc": finite(match[2])}
    if match := COUNTED.search(part):
        right, of = int(match[2]), int(match[3])
        return {"test_loss": finite(match[1]), "accuracy": right / of if of else None}
    match = ACCURACY.search(part)
    return {"accuracy": finite(match[1])} if match else {}


def read_run(part: str) -> Row:
    """What is said of the whole run, at its start and at its end."""
    said: Row = {key: int(value) for key, value in ARGUMENT.findall(part)} if "'" in part else {}
    if "[init]" in part and (match := INIT.search(part)):
        said["world_size"] = int(match[1])
    if (" seconds:" in part or "best_acc:" in part) and (match := ENDED.search(part)):
        said[match[1].replace(" ", "_")] = finite(match[2])
    return said


def read_mnist_line(line: str) -> Row:
    """The batch or the scores in a line."""
    found = [row for part in parts([line]) if (row := read_batch(part) or read_scores(part))]
    return found[-1] if found else {}
