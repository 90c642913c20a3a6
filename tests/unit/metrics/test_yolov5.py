"""The log of YOLOv5's train.py, complete and incomplete."""

import pytest

from tests.inputs.printed_metrics import load_posted_log
from torchyard.metrics.registry import describe_row, get_progress
from torchyard.metrics.yolov5 import Yolov5LineReader, read_yolov5

# A bar is redrawn after each carriage return, so newlines must not be translated.
YOLOV5 = load_posted_log("yolov5")
BAR = "\r  3/9  2.1G  0.05  0.04  0.03  17  640:  50%|     | 1/2 [00:01<00:01]"
VALIDATED = "                   all        128        929        0.7        0.6        0.7       0.45"


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
        "epochs": 300,
        "hours": 1.865,
        "results": "runs/train/exp3",
        "best_epoch": 299,
        "best_mAP50": 0.832,
        "best_mAP50_95": 0.473,
        "best_fitness": 0.5089,
        "final_P": 0.855,
        "final_R": 0.753,
        "final_mAP50": 0.832,
        "final_mAP50_95": 0.471,
    }


def test_yolov5_epoch_may_lack_scores() -> None:
    """An epoch in which the run was stopped has losses but no scores, and a nan loss is None."""
    rows = read_yolov5([BAR, VALIDATED, BAR.replace("3/9", "4/9").replace("0.05", "nan")]).rows
    assert [row.get("mAP50") for row in rows] == [0.7, None]
    assert rows[1]["box_loss"] is None


def test_yolov5_scores_without_an_epoch_are_final() -> None:
    """A log with scores but no epoch has no row; the scores go into the summary."""
    metrics = read_yolov5([VALIDATED])
    assert (metrics.rows, list(metrics.summary.values())) == ((), [0.7, 0.6, 0.7, 0.45])


def test_yolov5_epoch_run_again_counts_once() -> None:
    """An epoch that is run again after a restart loses its old scores."""
    rows = read_yolov5([BAR, VALIDATED, BAR.replace("0.05", "0.06")]).rows
    assert [(row["epoch"], row["box_loss"], row.get("mAP50")) for row in rows] == [(3, 0.06, None)]


def test_yolov5_state_that_is_repeated_later_does_not_replace_an_epoch() -> None:
    """A completed epoch keeps its losses and scores, also if states of its bar come again after later lines."""
    done = BAR.replace("50%", "100%")
    other = done.replace("3/9", "4/9")
    repeated = [BAR.replace("0.05", "0.07"), done]
    rows = read_yolov5([BAR.replace("0.05", "0.07"), done, VALIDATED, other, VALIDATED, *repeated]).rows
    assert [(row["epoch"], row["box_loss"], row["mAP50"]) for row in rows] == [(3, 0.05, 0.7), (4, 0.05, 0.7)]


def test_yolov5_epoch_completed_again_after_a_restart_counts() -> None:
    """A restart that completes an epoch again replaces its row and its scores."""
    done = BAR.replace("50%", "100%")
    better = VALIDATED.replace("0.7       0.45", "0.8       0.45")
    rows = read_yolov5([done, VALIDATED, BAR, done.replace("0.05", "0.04"), better]).rows
    assert [(row["box_loss"], row["mAP50"]) for row in rows] == [(0.04, 0.8)]


@pytest.mark.parametrize("before", ["", "[0:0]: ", "\x1b[34m\x1b[1mtrain: \x1b[0m", "2026-11-21T08:00:47Z "])
def test_yolov5_prefix_of_a_launcher_does_not_hide_a_line(before: str) -> None:
    """Colours and the prefix of a launcher do not hide a line."""
    lines = [before + BAR.strip(), before + VALIDATED, before + "10 epochs completed in 0.210 hours."]
    metrics = read_yolov5(lines)
    assert [(row["epoch"], row["size"], row["mAP50_95"]) for row in metrics.rows] == [(3, 640, 0.45)]
    assert metrics.summary["hours"] == 0.21


@pytest.mark.parametrize("text", ["3/9  2.1G  0.05  0.04  0.0", "all 128 929 0.7 0.6 0.7", "overall 1 2 3 4 5 6"])
def test_yolov5_torn_line_is_not_a_row(text: str) -> None:
    """Half of a bar or of the scores gives no row."""
    assert Yolov5LineReader()(text) == {}


def test_yolov5_progress() -> None:
    """Epochs are counted from 0: the last of ten is 9, at which progress is complete."""
    row = Yolov5LineReader()(BAR + BAR.replace("3/9", "9/9"))
    assert get_progress(row) == ("epoch", 9, 9, 1.0)
    assert describe_row(row)[:20] == "epoch 9: GPU_mem 2.1"
    assert Yolov5LineReader()(VALIDATED) == {"P": 0.7, "R": 0.6, "mAP50": 0.7, "mAP50_95": 0.45}


# --- the columns that the headers name

V8 = [
    "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size",
    "      1/100      2.27G      1.171      1.623      1.207         64        640: 100%|##########| 8/8 [00:02<00:00]",
    "                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100%|##########| 4/4",
    "                   all        128        929       0.66      0.541      0.612      0.452",
]
V8_MASKS = [
    "      Epoch    GPU_mem   box_loss   seg_loss   cls_loss   dfl_loss  Instances       Size",
    "       1/10      3.51G       1.08      2.412      1.561      1.188         57        640: 100%|##########| 8/8",
    "       Class  Images  Instances  Box(P    R   mAP50  mAP50-95)  Mask(P    R   mAP50  mAP50-95): 100%|###| 4/4",
    "         all     128        929   0.66  0.541   0.612    0.452     0.61  0.5    0.58    0.39",
]
SCORES = "P R mAP50 mAP50_95"
MASK_SCORES = "mask_P mask_R mask_mAP50 mask_mAP50_95"
V3 = [
    "     Epoch   gpu_mem      GIoU       obj       cls     total   targets  img_size",
    "     0/299     4.62G      5.24      20.3         0      25.6        61       416: 100%|####| 17/17 [00:20<00:00]",
    "               Class    Images   Targets         P         R   mAP@0.5        F1: 100%|####| 4/4 [00:02<00:00]",
    "                 all       128       929     0.251     0.121     0.105     0.163",
]


@pytest.mark.parametrize(
    ("log", "keys"),
    [
        (V8, f"epoch GPU_mem box_loss cls_loss dfl_loss instances size {SCORES}"),
        (V8_MASKS, f"epoch GPU_mem box_loss seg_loss cls_loss dfl_loss instances size {SCORES} {MASK_SCORES}"),
        (V3, "epoch GPU_mem giou_loss obj_loss cls_loss total_loss instances size P R mAP50 F1"),
    ],
)
def test_columns_are_those_of_the_header(log: list[str], keys: str) -> None:
    """Other versions of YOLO have other columns, which their headers name."""
    (row,) = read_yolov5(log).rows
    assert list(row) == keys.split()


def test_values_are_named_by_their_own_header() -> None:
    """The values of version 8 are those under its own header, and not under that of version 5."""
    (row,) = read_yolov5(V8).rows
    assert (row["cls_loss"], row["dfl_loss"], row["mAP50_95"], row["size"]) == (1.623, 1.207, 0.452, 640)


def test_bar_with_other_columns_than_its_header_is_not_a_row() -> None:
    """A bar that does not have the header's number of columns is not read: its values would get wrong names."""
    assert read_yolov5([V8_MASKS[0], V8[1]]).rows == ()


def test_first_validation_is_not_the_final_one() -> None:
    """A validation before the first epoch is that of the initial weights, not of the best ones."""
    first = VALIDATED.replace("0.45", "0.01")
    metrics = read_yolov5([first, BAR, VALIDATED])
    assert (metrics.summary.get("final_mAP50_95"), metrics.rows[0]["mAP50_95"]) == (None, 0.45)
    ended = read_yolov5([first, BAR, VALIDATED, "10 epochs completed in 0.210 hours.", VALIDATED.replace("45", "47")])
    assert ended.summary["final_mAP50_95"] == 0.47


def test_progress_has_no_losses_by_wrong_names() -> None:
    """Before the first header the losses, which it names, are left out."""
    assert Yolov5LineReader()(V8[1]) == {"epoch": 1, "last_epoch": 100, "GPU_mem": 2.27, "instances": 64, "size": 640}


def test_progress_has_the_losses_that_the_header_names() -> None:
    """The lines after a header have the losses by its names, and nan as None, while the job runs."""
    read_line = Yolov5LineReader()
    assert read_line(V8[0]) == {}
    row = read_line(V8[1].replace("1.623", "  nan"))
    assert [row[name] for name in ("box_loss", "cls_loss", "dfl_loss")] == [1.171, None, 1.207]
