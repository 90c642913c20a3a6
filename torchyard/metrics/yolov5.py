"""yolov5: what the train.py of ultralytics/yolov5 logs."""

import math
import re
from collections.abc import Iterable

from torchyard.metrics.rows import Rows, build_metrics
from torchyard.metrics.text import split_terminal_lines
from torchyard.model.run import Metrics, Row

# The bar of an epoch, the means over all classes after it, and the last words.
_VALUE = r"\s+(-?\d{1,20}(?:\.\d{0,20})?(?:e[-+]\d{1,3})?|nan|-?inf)"
_EPOCH_PATTERN = re.compile(r"(?<![\d/.])(\d{1,9})/(\d{1,9})\s+(\d{1,9}(?:\.\d{1,9})?)G" + _VALUE * 5 + ":")
_SCORES_PATTERN = re.compile(r"(?<!\S)all" + _VALUE * 6 + r"\s*$")
_END_PATTERN = re.compile(r"(?<!\S)(\d{1,9}) epochs completed in (\d{1,9}(?:\.\d{1,9})?) hours")
_SAVED_PATTERN = re.compile(r"(?<!\S)Results saved to (\S+)")
_LOSS_COLUMNS = ("box_loss", "obj_loss", "cls_loss")
_SCORE_COLUMNS = ("P", "R", "mAP50", "mAP50_95")


def read_yolov5(lines: Iterable[str]) -> Metrics:
    """What YOLOv5's train.py logs: one row per epoch, the last state of its bar and the validation that follows.

    `GPU_mem` is in GB. The scores that come after the last epoch are those of the best weights (`final_...`).
    """
    lost = _BestRow()
    rows = Rows(lost.take)
    summary: Row = {}
    row: Row = {}
    for part in split_terminal_lines(lines):
        epoch, scores = _read_epoch(part), _read_scores(part)
        if epoch:
            row = {key: value for key, value in epoch.items() if key != "last_epoch"}
            rows.put(("epoch", row["epoch"]), row)
        elif scores and row and "hours" not in summary:
            row |= scores
        elif scores:
            summary |= {f"final_{key}": value for key, value in scores.items() if f"final_{key}" not in summary}
        summary |= _read_end_facts(part)
    return build_metrics(rows, {**summary, **_find_best_epoch([*lost.rows, *rows.all()])})


class _BestRow:
    """The best row of those that were not kept."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def take(self, row: Row) -> None:
        if math.isfinite(_compute_fitness(row)) and (
            not self.rows or _compute_fitness(row) > _compute_fitness(self.rows[0])
        ):
            self.rows = [row]


def _read_epoch(part: str) -> Row:
    """A state of the bar; `last_epoch` is the number of the last one, as YOLOv5 counts from 0."""
    match = _EPOCH_PATTERN.search(part) if "G" in part and "/" in part else None
    if match is None:
        return {}
    losses, sizes = match.groups()[3:6], [float(each) for each in match.groups()[6:]]
    counts = {key: int(size) for key, size in zip(("instances", "size"), sizes, strict=True) if math.isfinite(size)}
    values = dict(zip(_LOSS_COLUMNS, map(float, losses), strict=True))
    return {"epoch": int(match[1]), "last_epoch": int(match[2]), "GPU_mem": float(match[3]), **values, **counts}


def _read_scores(part: str) -> Row:
    """Precision, recall and mean average precision over all classes."""
    match = _SCORES_PATTERN.search(part) if "all" in part else None
    return dict(zip(_SCORE_COLUMNS, map(float, match.groups()[2:]), strict=True)) if match else {}


def _read_end_facts(part: str) -> Row:
    if "epochs completed" not in part and "Results saved" not in part:
        return {}
    ended, saved = _END_PATTERN.search(part), _SAVED_PATTERN.search(part)
    words: Row = {"epochs": int(ended[1]), "hours": float(ended[2])} if ended else {}
    return {**words, "results": saved[1]} if saved else words


def _find_best_epoch(rows: Iterable[Row]) -> Row:
    """The epoch whose weights YOLOv5 keeps as best.pt: the first of the highest fitness."""
    fit = [(_compute_fitness(row), row) for row in rows]
    most, row = max((it for it in fit if math.isfinite(it[0])), key=lambda it: it[0], default=(math.nan, Row()))
    kept = {f"best_{key}": row[key] for key in ("epoch", "mAP50", "mAP50_95") if row}
    return {**kept, "best_fitness": round(most, 6)} if row else {}


def _compute_fitness(row: Row) -> float:
    """How YOLOv5 weighs an epoch: 0.1 * mAP50 + 0.9 * mAP50-95; nan without them."""
    rough, strict = row.get("mAP50"), row.get("mAP50_95")
    return 0.1 * rough + 0.9 * strict if isinstance(rough, float) and isinstance(strict, float) else math.nan


def read_yolov5_line(line: str) -> Row:
    """The last state of the bar in a line, or the scores in it."""
    found = [row for part in split_terminal_lines([line]) if (row := _read_epoch(part) or _read_scores(part))]
    return found[-1] if found else {}
