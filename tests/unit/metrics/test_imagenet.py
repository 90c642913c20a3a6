"""The trainings of image classifiers: the averages of an epoch, and the scores of the test after it."""

import pytest

from torchyard.metrics.imagenet import ImageNetReader
from torchyard.metrics.registry import get_progress, get_reader
from torchyard.model.run import Row

EXAMPLES = [
    "Epoch: [0][  1/391]\tTime  3.202 ( 3.202)\tData  1.2 (  1.2)\tLoss 7.1031e+00 (7.1031e+00)\tAcc@1   0.00 (  0.00)",
    "Epoch: [0][ 11/391]\tTime  0.202 ( 0.502)\tData  0.2 (  0.2)\tLoss 6.9031e+00 (7.0031e+00)\tAcc@1   0.39 (  0.10)",
    "Test: [ 0/79]\tTime  1.0 ( 1.0)\tLoss 6.8e+00 (6.8e+00)\tAcc@1   0.00 (  0.00)\tAcc@5   0.00 (  0.00)",
    " *   Acc@1 1.300 Acc@5 4.500",
]
EXAMPLES_2017 = [
    "Epoch: [0][10/391]\tTime 0.213 (0.402)\tData 0.001 (0.01)\tLoss 6.1000 (6.2000)\tPrec@1 1.000 (1.100)",
    " * Prec@1 2.300 Prec@5 5.500",
]
TORCHVISION = [
    "Namespace(data_path='/x', model='resnet50', epochs=90, lr=0.1, start_epoch=0)",
    "Epoch: [0]  [  10/5005]  eta: 1:02:03  lr: 0.1  img/s: 123.4 (120.0)  loss: 6.9132 (7.0123)  acc1: 0.00 (0.10)",
    "Test:   [ 0/196]  eta: 0:10:00  loss: 6.0 (6.1)  acc1: 3.0 (3.1)  time: 1.0  data: 0.1  max mem: 100",
    "Test:  Acc@1 3.500 Acc@5 9.500",
]
TIMM = [
    "Scheduled epochs: 90. LR stepped per epoch.",
    "Train: 0 [  50/1251 (  4%)]  Loss:  6.929 (6.93)  Time: 0.320s,  400.32/s  (0.470s,  272.39/s)  LR: 1.000e-05",
    "Test: [  29/29]  Time: 0.041 (0.064)  Loss:  0.5912 (0.5512)  Acc@1: 87.5000 (85.5000)  Acc@5: 99.0 (97.0000)",
    "*** Best metric: 85.5 (epoch 0)",
]
SWIN = [
    "Train: [0/90][0/1251]\teta 0:10:00 lr 0.0001\ttime 0.3 (0.4)\tloss nan (nan)\tloss_scale 2.0 (2.0)",
    " * Acc@1 4.500 Acc@5 9.500",
]


@pytest.mark.parametrize(
    ("lines", "row"),
    [
        pytest.param(
            EXAMPLES,
            {"loss": 7.0031, "acc1": 0.1, "test_loss": 6.8, "test_acc1": 1.3, "test_acc5": 4.5},
            id="pytorch/examples",
        ),
        pytest.param(
            EXAMPLES_2017,
            {"loss": 6.2, "prec1": 1.1, "test_prec1": 2.3, "test_prec5": 5.5},
            id="pytorch/examples of 2017",
        ),
        pytest.param(
            TORCHVISION,
            {"lr": 0.1, "loss": 7.0123, "acc1": 0.1, "test_loss": 6.1, "test_acc1": 3.5, "test_acc5": 9.5},
            id="torchvision",
        ),
        pytest.param(
            TIMM,
            {"loss": 6.93, "lr": 1e-05, "test_loss": 0.5512, "test_acc1": 85.5, "test_acc5": 97.0},
            id="timm",
        ),
        pytest.param(SWIN, {"lr": 0.0001, "loss": None, "test_acc1": 4.5, "test_acc5": 9.5}, id="Swin"),
    ],
)
def test_row_of_an_epoch(lines: list[str], row: Row) -> None:
    """A row has the averages of its epoch and the scores of the test, without times and positions."""
    assert get_reader("imagenet")(lines).rows == ({"epoch": 0} | row,)


@pytest.mark.parametrize("lines", [TORCHVISION, TIMM, SWIN], ids=["torchvision", "timm", "Swin"])
def test_number_of_epochs_is_read_where_it_is_printed(lines: list[str]) -> None:
    """Epochs are counted from 0, so the last one of 90 is 89."""
    reader = ImageNetReader()
    rows = [reader(line) for line in lines]
    assert [row["last_epoch"] for row in rows if "batch" in row] == [89]


def test_second_epoch_of_three_is_half() -> None:
    """The progress counts from epoch 0 to the last one."""
    progress = get_progress(ImageNetReader()("Train: [1/3][0/1251]\tloss 6.9 (6.9)"))
    assert progress is not None
    assert progress.share == 0.5


def test_scores_without_a_training_are_the_summary() -> None:
    """An evaluation alone has no epoch."""
    metrics = get_reader("imagenet")([" *   Acc@1 76.130 Acc@5 92.862"])
    assert (metrics.rows, metrics.summary) == ((), {"test_acc1": 76.13, "test_acc5": 92.862})
