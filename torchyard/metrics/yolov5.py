"""yolov5: what the train.py of ultralytics/yolov5 logs."""

import math
import re
from collections.abc import Iterable

from torchyard.metrics.rows import Rows, measured
from torchyard.metrics.text import parts
from torchyard.model.run import Metrics, Row

# The bar of an epoch, the means over all classes after it, and the last words.
VALUE = r"\s+(-?\d{1,20}(?:\.\d{0,20})?(?:e[-+]\d{1,3})?|nan|-?inf)"
EPOCH = re.compile(r"(?<![\d/.])(\d{1,9})/(\d{1,9})\s+(\d{1,9}(?:\.\d{1,9})?)G" + VALUE * 5 + ":")
ALL = re.compile(r"(?<!\S)all" + VALUE * 6 + r"\s*$")
ENDED = re.compile(r"(?<!\S)(\d{1,9}) epochs completed in (\d{1,9}(?:\.\d{1,9})?) hours")
SAVED = re.compile(r"(?<!\S)Results saved to (\S+)")
LOSSES = ("box_loss", "obj_loss", "cls_loss")
SCORES = ("P", "R", "mAP50", "mAP50_95")


def read_yolov5(lines: Iterable[str]) -> Metrics:
    """What YOLOv5's train.py logs: one row per epoch, the last state of its bar and the validation that follows.

    `GPU_mem` is in GB. The scores that come after the last epoch are those of the best weights (`final_...`).
    """
    lost = Best()
    rows = Rows(lost.take)
    summary: Row = {}
    row: Row = {}
    for part in parts(lines):
        epoch, scores = read_epoch(part), read_scores(part)
        if epoch:
            row = {key: value for key, value in epoch.items() if key != "last_epoch"}
            rows.put(("epoch", row["epoch"]), row)
        elif scores and row and "hours" not in summary:
            row |= scores
        elif scores:
            summary |= {f"final_{key}": value for key, value in scores.items() if f"final_{key}" not in summary}
        summary |= read_last_words(part)
    return measured(rows, {**summary, **best([*lost.rows, *rows.all()])})


class Best:
    """The best row of those that were not kept."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def take(self, row: Row) -> None:
        if math.isfinite(fitness(row)) and (not self.rows or fitness(row) > fitness(self.rows[0])):
            self.rows = [row]


def read_epoch(part: str) -> Row:
    """A state of the bar; `last_epoch` is the number of the last one, as YOLOv5 counts from 0."""
    match = EPOCH.search(part) if "G" in part and "/" in part else None
    if match is None:
        return {}
    losses, sizes = match.groups()[3:6], [float(each) for each in match.groups()[6:]]
    counts = {key: int(size) for key, size in zip(("instances", "size"), sizes, strict=True) if math.isfinite(size)}
    values = dict(zip(LOSSES, map(float, losses), strict=True))
    return {"epoch": int(match[1]), "last_epoch": int(match[2]), "GPU_mem": float(match[3]), **values, **counts}


def read_scores(part: str) -> Row:
    """Precision, recall and mean average precision over all classes."""
    match = ALL.search(part) if "all" in part else None
    return dict(zip(SCORES, map(float, match.groups()[2:]), strict=True)) if match else {}


def read_last_words(part: str) -> Row:
    if "epochs completed" not in part and "Results saved" not in part:
        return {}
    ended, saved = ENDED.search(part), SAVED.search(part)
    words: Row = {"epochs": int(ended[1]), "hours": float(ended[2])} if ended else {}
    return {**words, "results": saved[1]} if saved else words


def best(rows: Iterable[Row]) -> Row:
    """The epoch whose weights YOLOv5 keeps as best.pt: the first of the highest fitness."""
    fit = [(fitness(row), row) for row in rows]
    most, row = max((it for it in fit if math.isfinite(it[0])), key=lambda it: it[0], default=(math.nan, Row()))
    kept = {f"best_{key}": row[key] for key in ("epoch", "mAP50", "mAP50_95") if row}
    return {**kept, "best_fitness": round(most, 6)} if row else {}


def fitness(row: Row) -> float:
    """How YOLOv5 weighs an epoch: 0.1 * mAP50 + 0.9 * mAP50-95; nan without them."""
    rough, strict = row.get("mAP50"), row.get("mAP50_95")
    return 0.1 * rough + 0.9 * strict if isinstance(rough, float) and isinstance(strict, float) else math.nan


def read_yolov5_line(line: str) -> Row:
    """The last state of the bar in a line, or the scores in it."""
    found = [row for part in parts([line]) if (row := read_epoch(part) or read_scores(part))]
    return found[-1] if found else {}
