"""What rank 0 printed, as rows."""

import json
from pathlib import Path
from typing import get_args

import pytest

from torchyard.common.log_lines import read_line
from torchyard.metrics.registry import (
    LINE_READERS,
    READERS,
    describe_row,
    format_number,
    read_json_lines,
    read_object,
    read_progress,
)
from torchyard.metrics.yolov5 import read_yolov5, read_yolov5_line
from torchyard.model.profile import MetricsFormat
from torchyard.model.run import Attempt, Collected, Failure, LogFile, LogLine, Metrics, Outcome, Report, Status, Step
from torchyard.run.plot import draw_plot
from torchyard.run.report import format_duration, render_markdown, render_text
from torchyard.steps.log_reader import _RankZeroFilter

ROWS = [{"epoch": at, "epochs": 3, "accuracy": 0.5 + at / 10, "world_size": 2} for at in (1, 2, 3)]
# A bar is redrawn after each carriage return: no newline is to be translated.
YOLOV5 = (Path(__file__).parent / "logs" / "posted-yolov5.txt").read_bytes().decode().split("\n")
BAR = "\r  3/9  2.1G  0.05  0.04  0.03  17  640:  50%|     | 1/2 [00:01<00:01]"
VALIDATED = "                   all        128        929        0.7        0.6        0.7       0.45"
LINES = ["rank 0 of 2", *(json.dumps(row) for row in ROWS), "{torn", '{"best": 0.8}']


def test_rows_and_summary_are_told_apart() -> None:
    """An object with an epoch is a row; one without is about the whole run."""
    metrics = read_json_lines(LINES)
    assert [row["epoch"] for row in metrics.rows] == [1, 2, 3]
    assert metrics.summary == {"best": 0.8}


def test_row_said_again_counts_once() -> None:
    """A resumed program that repeats an epoch replaces its row."""
    metrics = read_json_lines([*LINES, '{"epoch": 3, "accuracy": 0.9}'])
    assert [row["accuracy"] for row in metrics.rows] == [0.6, 0.7, 0.9]


def test_every_format_has_its_readers() -> None:
    """What a profile may name can be read at the end and while the job runs."""
    assert set(get_args(MetricsFormat)) == set(READERS) == set(LINE_READERS)


def test_nested_values_are_left_out() -> None:
    """Only plain values of an object are metrics."""
    assert read_object('  {"epoch": 1, "all": [1, 2], "x": {"y": 1}}') == {"epoch": 1}


def test_half_of_a_surrogate_pair_can_be_reported() -> None:
    """JSON may name what UTF-8 cannot hold; the report is written all the same."""
    assert '"name":"?"' in read_json_lines(['{"name": "\\ud800"}']).model_dump_json()


def test_progress_is_part_of_the_total() -> None:
    """Epoch 1 of 4 is a quarter; a row without a total says nothing."""
    assert (read_progress({"epoch": 1, "epochs": 4}), read_progress({"epoch": 1})) == (0.25, None)


@pytest.mark.parametrize("done", ["NaN", "-1", "1" + "0" * 400])
def test_progress_needs_a_number(done: str) -> None:
    """What is no count of anything is no progress."""
    assert read_progress(read_object(f'{{"epoch": {done}, "epochs": 3}}')) is None


def test_no_number_reads_as_nan() -> None:
    """JSON has no nan: a report that was read back still says it."""
    assert (format_number(None), format_number(float("nan"))) == ("nan", "nan")


def test_row_in_words() -> None:
    """A row reads as a line without its total."""
    assert describe_row({"epoch": 3, "epochs": 9, "accuracy": 0.97222}) == "epoch 3: accuracy 0.9722"


def test_yolov5_epochs_are_rows() -> None:
    """A row is the last state of an epoch's bar and the scores after it."""
    rows = read_yolov5(YOLOV5).rows
    keys = ("epoch", "GPU_mem", "box_loss", "obj_loss", "cls_loss", "instances", "size", "P", "R", "mAP50", "mAP50_95")
    assert [tuple(row) for row in rows] == [keys] * 4
    assert [tuple(row.values()) for row in rows] == [
        (0, 13.5, 0.1168, 0.03311, 0, 191, 640, 0.000311, 0.0477, 0.000163, 3.73e-05),
        (1, 13.5, 0.1071, 0.0347, 0, 239, 640, 0.000289, 0.0444, 0.000161, 3.84e-05),
        (298, 13.5, 0.03684, 0.01462, 0, 269, 640, 0.844, 0.755, 0.832, 0.472),
        (299, 13.5, 0.03614, 0.01435, 0, 189, 640, 0.855, 0.753, 0.832, 0.473),
    ]


def test_yolov5_summary() -> None:
    """The best epoch has the highest fitness; the scores after the last epoch are those of the best weights."""
    assert read_yolov5(YOLOV5).summary == {
        **{"epochs": 300, "hours": 1.865, "results": "runs/train/exp3"},
        **{"best_epoch": 299, "best_mAP50": 0.832, "best_mAP50_95": 0.473, "best_fitness": 0.5089},
        **{"final_P": 0.855, "final_R": 0.753, "final_mAP50": 0.832, "final_mAP50_95": 0.471},
    }


def test_yolov5_epoch_may_lack_scores() -> None:
    """A run that was stopped within an epoch has its losses; one that makes no sense of itself says nan."""
    rows = read_yolov5([BAR, VALIDATED, BAR.replace("3/9", "4/9").replace("0.05", "nan")]).rows
    assert [row.get("mAP50") for row in rows] == [0.7, None]
    assert str(rows[1]["box_loss"]) == "nan"


def test_yolov5_scores_without_an_epoch_are_final() -> None:
    """Weights that are only validated have no row."""
    metrics = read_yolov5([VALIDATED])
    assert (metrics.rows, list(metrics.summary.values())) == ((), [0.7, 0.6, 0.7, 0.45])


def test_yolov5_epoch_run_again_counts_once() -> None:
    """After a restart an epoch begins anew: its old scores do not stay with it."""
    rows = read_yolov5([BAR, VALIDATED, BAR.replace("0.05", "0.06")]).rows
    assert [(row["epoch"], row["box_loss"], row.get("mAP50")) for row in rows] == [(3, 0.06, None)]


@pytest.mark.parametrize("before", ["", "[0:0]: ", "\x1b[34m\x1b[1mtrain: \x1b[0m", "2026-11-21T08:00:47Z "])
def test_yolov5_noise_before_a_line_is_passed_over(before: str) -> None:
    """Colours and what a launcher writes before a line do not hide it."""
    lines = [before + BAR.strip(), before + VALIDATED, before + "10 epochs completed in 0.210 hours."]
    metrics = read_yolov5(lines)
    assert [(row["epoch"], row["size"], row["mAP50_95"]) for row in metrics.rows] == [(3, 640, 0.45)]
    assert metrics.summary["hours"] == 0.21


@pytest.mark.parametrize("text", ["3/9  2.1G  0.05  0.04  0.0", "all 128 929 0.7 0.6 0.7", "overall 1 2 3 4 5 6"])
def test_yolov5_torn_line_is_no_row(text: str) -> None:
    """Half of a bar or of the scores says nothing."""
    assert read_yolov5_line(text) == {}


def test_yolov5_progress() -> None:
    """Epochs are counted from 0: the last of ten is 9, and the bar is full there."""
    row = read_yolov5_line(BAR + BAR.replace("3/9", "9/9"))
    assert (read_progress(row), describe_row(row)[:20]) == (1.0, "epoch 9: GPU_mem 2.1")
    assert read_yolov5_line(VALIDATED) == {"P": 0.7, "R": 0.6, "mAP50": 0.7, "mAP50_95": 0.45}


def agent(rank: int, *said: str) -> list[LogLine]:
    """The log of a node that got a group rank."""
    lines = [
        "I1 api.py:5] [default] Rendezvous complete for workers. Result:",
        f"I1 api.py:5]   group_rank={rank}",
        *said,
    ]
    return [LogLine(1.0, "node", text) for text in lines]


def test_rank_zero_is_where_the_rendezvous_put_it() -> None:
    """Local rank 0 of the node with group rank 0 is global rank 0; others are not."""
    zero, one = _RankZeroFilter("teed", first=False), _RankZeroFilter("teed", first=True)
    said = [zero.take(line) for line in agent(0, "[default0]:mine", "[default1]:other", "agent")]
    assert said == [None, None, "mine", None, None]
    assert {one.take(line) for line in agent(1, "[default0]:not mine")} == {None}


def test_first_node_has_rank_zero_without_an_agent() -> None:
    """Where the program starts its processes itself, all that the first node says counts, and nothing else."""
    line = LogLine(1.0, "node", "mine")
    assert [_RankZeroFilter("placed", first).take(line) for first in (True, False)] == ["mine", None]


def test_stamped_line_is_read_back() -> None:
    """The stamp is seconds since the epoch, and the text may hold the separator."""
    assert read_line("1970-01-01T00:00:01.500Z node-0 | a | b", "node-0") == LogLine(1.5, "node-0", "a | b")


def test_line_without_a_stamp_is_kept() -> None:
    """A torn line is kept whole."""
    assert read_line("half of", "node-0") == LogLine(0.0, "node-0", "half of")


def report(end: str = "succeeded", rows: int = 3) -> Report:
    found = Failure(cause="program-error", sentence="it broke", tail=("Boom: 1",)) if end == "failed" else None
    collected = Collected(
        logs=(LogFile(node="node-0", path="/runs/x/node-0/log", lines=12, lost="3 lines: No space left on device"),),
        metrics=Metrics(rows=tuple(ROWS[:rows])),
        failure=found,
    )
    outcome = Outcome(status=Status(state="running", reason=""), exits={})
    fields = {"end": end, "sentence": "a sentence", "seconds": 761, "folder": "/runs/x", "run": "x-1", "profile": "x"}
    steps = (Step(name="wait", seconds=12.3, detail="both joined"),)
    return Report.model_validate(
        fields | {"steps": steps, "attempts": (Attempt(number=1, outcome=outcome, collected=collected),)}
    )


def test_text_report_holds_what_a_person_asks_for() -> None:
    """State, time, steps, metrics and logs are in the text, and a constant column is said once."""
    text = render_text(report())
    for part in (
        "succeeded in 12 min 41 s",
        "both joined",
        "/runs/x/node-0/log",
        "incomplete: 3 lines",
        "world_size   2",
    ):
        assert part in text
    assert text.count("world_size") == 1


def test_last_lines_are_shown_of_a_failure_only() -> None:
    """A failed run shows the failing rank's tail."""
    assert "| Boom: 1" in render_text(report("failed"))
    assert "Boom" not in render_text(report("cancelled"))


def test_markdown_holds_the_plot() -> None:
    """The artifact has the picture inside, and stays small."""
    text = render_markdown(report())
    assert "data:image/svg+xml;base64," in text
    assert len(text) < 200_000


def test_one_row_makes_no_plot() -> None:
    """A curve needs two points."""
    assert draw_plot(Metrics(rows=(ROWS[0],)).rows, list(ROWS[0])) is None


def test_spans_read_well() -> None:
    """Seconds, minutes and hours as a person says them."""
    assert [format_duration(each) for each in (0.25, 38.2, 761, 7500)] == ["0.2 s", "38 s", "12 min 41 s", "2 h 05 min"]


def test_report_survives_the_disk(tmp_path: Path) -> None:
    """report.json is the report."""
    (tmp_path / "report.json").write_text(report("failed").model_dump_json())
    assert Report.model_validate_json((tmp_path / "report.json").read_text()) == report("failed")
