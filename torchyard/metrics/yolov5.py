"""yolov5: the log of the train.py of ultralytics' YOLO, of versions 3, 5 and 8."""

import math
import re
from collections.abc import Iterable, Sequence

from torchyard.metrics.rows import Rows, build_metrics
from torchyard.metrics.text import drop_non_finite, split_terminal_lines
from torchyard.model.run import Metrics, Row

# The progress bar of an epoch, the means over all classes after it, and the final lines.
_VALUE = r"\s+(?:-?\d{1,20}(?:\.\d{0,20})?(?:e[-+]\d{1,3})?|nan|-?inf)"
_START = r"(?<![^\s:>])"  # of a line, or of what follows a prefix
_EPOCH_PATTERN = re.compile(
    rf"(?<![\d/.])(\d{{1,9}})/(\d{{1,9}})\s+(\d{{1,9}}(?:\.\d{{1,9}})?)G((?:{_VALUE}){{4,9}}):(?:\s*(\d{{1,3}})%)?"
)
_SCORES_PATTERN = re.compile(rf"{_START}all((?:{_VALUE}){{6,10}})\s*$")
_END_PATTERN = re.compile(rf"{_START}(\d{{1,9}}) epochs completed in (\d{{1,9}}(?:\.\d{{1,9}})?) hours")
_SAVED_PATTERN = re.compile(rf"{_START}Results saved to (\S+)")
# The headers above the bar and the means. They name the columns.
_EPOCH_HEADER = re.compile(rf"{_START}Epoch\s+(?:GPU_mem|gpu_mem)\s+(\S.*?)\s*$")
_SCORES_HEADER = re.compile(rf"{_START}Class\s+Images\s+(?:Instances|Labels|Targets)\s+(\S[^:%]*?\S)(?=:\s|\s*$)")
# The names of the columns in the report; other columns keep their own names.
_NAMES = {
    "giou": "giou_loss",
    "box": "box_loss",
    "obj": "obj_loss",
    "cls": "cls_loss",
    "dfl": "dfl_loss",
    "total": "total_loss",
    "labels": "instances",
    "targets": "instances",
    "img_size": "size",
    "mAP@.5": "mAP50",
    "mAP@0.5": "mAP50",
    "mAP@.5:.95": "mAP50_95",
    "mAP@0.5:0.95": "mAP50_95",
    "mAP50-95": "mAP50_95",
}
_COUNTS = ("instances", "size")
_LOSS_COLUMNS = ("box_loss", "obj_loss", "cls_loss", "instances", "size")  # of version 5, if there is no header
_SCORE_COLUMNS = ("P", "R", "mAP50", "mAP50_95")


class _Columns:
    """The columns of both tables, by the last header of each; those of version 5 before the first header."""

    def __init__(self) -> None:
        self._losses: Sequence[str] = _LOSS_COLUMNS
        self._scores: Sequence[str] = _SCORE_COLUMNS

    def parse_header(self, line: str) -> bool:
        """Whether a line is a header; if so, its names apply from now on."""
        if "Epoch" in line and (match := _EPOCH_HEADER.search(line)):
            self._losses = [_NAMES.get(name.lower(), name.lower()) for name in match[1].split()]
            return True
        if "Class" in line and (match := _SCORES_HEADER.search(line)):
            self._scores = list(_parse_score_names(match[1]))
            return True
        return False

    def parse_epoch(self, line: str) -> Row:
        """A state of the progress bar; {} if the line is not one, or its columns are not those of the header.

        `last_epoch` is the number of the last epoch, as version 5 counts from 0; `percent` is 100 at the end of the
        epoch, and missing if the bar was truncated. `GPU_mem` is in GB.
        """
        match = _EPOCH_PATTERN.search(line) if "G" in line and "/" in line else None
        if match is None:
            return {}
        values = [float(text) for text in match[4].split()]
        if len(values) != len(self._losses):
            return {}
        row: Row = {"epoch": int(match[1]), "last_epoch": int(match[2]), "GPU_mem": float(match[3])}
        for name, value in zip(self._losses, values, strict=True):
            if name not in _COUNTS:
                row[name] = drop_non_finite(value)
            elif math.isfinite(value):
                row[name] = int(value)
        if match[5]:
            row["percent"] = int(match[5])
        return row

    def parse_scores(self, line: str) -> Row:
        """Precision, recall and mean average precision over all classes; {} if the line does not contain them.

        Segmentation has each score twice, of the boxes and of the masks; the latter have names with `mask_`.
        """
        match = _SCORES_PATTERN.search(line) if "all" in line else None
        if match is None:
            return {}
        values = [float(text) for text in match[1].split()[2:]]
        if len(values) != len(self._scores):
            return {}
        return dict(zip(self._scores, map(drop_non_finite, values), strict=True))


def _parse_score_names(text: str) -> Iterable[str]:
    """`P R mAP50 mAP50_95` of a header; version 8 writes `Box(P R mAP50 mAP50-95)`, and then the same of Mask."""
    prefix = ""
    for heading in text.split():
        kind, parenthesis, name = heading.rpartition("(")
        if parenthesis:
            prefix = "" if kind == "Box" else f"{kind.lower()}_"
        name = name.rstrip(")")
        if name:
            yield prefix + _NAMES.get(name, name)


def read_yolov5(lines: Iterable[str]) -> Metrics:
    """Read YOLO's log: one row per epoch, with the last state of its progress bar and the validation that follows.

    `GPU_mem` is in GB; the headers name the other columns. The scores after the last epoch are those of the best
    weights (`final_...`); a log without an epoch has only these.
    """
    best_dropped = _BestDroppedRow()
    rows = Rows(best_dropped.record)
    columns = _Columns()
    row: Row = {}
    completed_epochs: set[int] = set()
    summary: Row = {}
    final_scores: Row = {}
    standalone_scores: Row = {}  # before the first epoch
    for line in split_terminal_lines(lines):
        if columns.parse_header(line):
            continue
        state = columns.parse_epoch(line)
        scores = columns.parse_scores(line)
        if state:
            row = _put_epoch(rows, state, completed_epochs)
        elif "hours" in summary:  # printed after the last epoch
            final_scores = final_scores or scores
        elif row:
            row |= scores
        else:
            standalone_scores = scores or standalone_scores
        summary |= _parse_end_summary(line)
    if not final_scores and not rows.count:
        final_scores = standalone_scores
    for key, value in final_scores.items():
        summary[f"final_{key}"] = value
    summary |= _find_best_epoch(best_dropped.rows + list(rows.all()))
    return build_metrics(rows, summary)


def _put_epoch(rows: Rows, state: Row, completed_epochs: set[int]) -> Row:
    """Put a state of an epoch's bar into the rows; return the epoch's row.

    A log may repeat states of an earlier epoch, because its lines come from two files of a rank. They do not replace
    the row of a completed epoch, whose scores are kept; only a restart that completes the epoch again replaces it.
    """
    row = {key: value for key, value in state.items() if key not in ("last_epoch", "percent")}
    key = ("epoch", row["epoch"])
    existing = rows.get(key)
    is_complete = state.get("percent") == 100
    epoch = int(row["epoch"] or 0)
    if existing and epoch in completed_epochs:
        is_repeated = all(existing.get(name) == value for name, value in row.items())
        if not is_complete or is_repeated:
            return existing
    if is_complete:
        completed_epochs.add(epoch)
    rows.put(key, row)
    return row


class _BestDroppedRow:
    """The best of the rows that `Rows` has dropped, so that a long run does not lose its best epoch.

    `rows` contains this row; it is empty before the first one with scores.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def record(self, row: Row) -> None:
        fitness = _compute_fitness(row)
        if not math.isfinite(fitness):
            return
        if not self.rows or fitness > _compute_fitness(self.rows[0]):
            self.rows = [row]


def _parse_end_summary(line: str) -> Row:
    """The values of one of the final lines: `epochs` and `hours`, or the folder `results`; {} for other lines."""
    if "epochs completed" not in line and "Results saved" not in line:
        return {}
    summary: Row = {}
    if match := _END_PATTERN.search(line):
        summary["epochs"] = int(match[1])
        summary["hours"] = float(match[2])
    if match := _SAVED_PATTERN.search(line):
        summary["results"] = match[1]
    return summary


def _find_best_epoch(rows: Iterable[Row]) -> Row:
    """The epoch whose weights YOLOv5 keeps as best.pt, the first with the highest fitness; {} if none has scores."""
    best_fitness = -math.inf
    best_row: Row = {}
    for row in rows:
        fitness = _compute_fitness(row)
        if math.isfinite(fitness) and fitness > best_fitness:
            best_fitness = fitness
            best_row = row
    if not best_row:
        return {}
    return {
        "best_epoch": best_row["epoch"],
        "best_mAP50": best_row["mAP50"],
        "best_mAP50_95": best_row["mAP50_95"],
        "best_fitness": round(best_fitness, 6),
    }


def _compute_fitness(row: Row) -> float:
    """YOLOv5's fitness, which selects best.pt: 0.1 * mAP50 + 0.9 * mAP50-95; nan if the row lacks one of them."""
    map50 = row.get("mAP50")
    map50_95 = row.get("mAP50_95")
    if not isinstance(map50, float) or not isinstance(map50_95, float):
        return math.nan
    return 0.1 * map50 + 0.9 * map50_95


class Yolov5LineReader:
    """Read one log line by line, in order: the headers name the columns of the lines after them."""

    def __init__(self) -> None:
        self._columns = _Columns()
        self._has_header = False

    def __call__(self, line: str) -> Row:
        """The last state of the bar in a line, or the scores in it; {} if it has neither.

        Losses are left out before the first header: the versions name them differently.
        """
        columns = self._columns
        last_row: Row = {}
        for terminal_line in split_terminal_lines([line]):
            if columns.parse_header(terminal_line):
                self._has_header = True
            else:
                last_row = columns.parse_epoch(terminal_line) or columns.parse_scores(terminal_line) or last_row
        row = {key: value for key, value in last_row.items() if key != "percent"}
        if self._has_header:
            return row
        return {key: value for key, value in row.items() if not key.endswith("_loss")}
