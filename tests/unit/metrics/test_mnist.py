"""The losses and scores that the MNIST examples of several projects print."""

import pytest

from tests.inputs.printed_metrics import MNIST, select_columns
from torchyard.metrics.mnist import read_mnist, read_mnist_line
from torchyard.metrics.registry import describe_row


def test_mnist_epochs_are_rows() -> None:
    """A row has an epoch's last loss and its test; only an epoch that improves on the others has `best acc`."""
    assert read_mnist(MNIST).rows == (
        {"epoch": 0, "loss": 0.9, "acc": 87.12, "best_acc": 87.12},
        {"epoch": 1, "loss": 0.51, "acc": 86.5},
    )


def test_mnist_summary() -> None:
    """The summary has the run's arguments, its world size and its times."""
    assert read_mnist(MNIST).summary == {
        "batch_size": 256,
        "epochs": 2,
        "world_size": 8,
        "prepare_seconds": 3.25,
        "training_seconds": 30.5,
        "best_acc": 87.12,
    }


@pytest.mark.parametrize(
    ("loss", "test"),
    [
        ("Loss: 0.033435", "Test set: Average loss: 0.0468, Accuracy: 9842/10000 (98%)"),
        ("loss=0.033435", "accuracy=0.9842"),
    ],
)
def test_mnist_of_pytorch_and_kubeflow(loss: str, test: str) -> None:
    """Both examples count samples and give the accuracy as 0 to 1."""
    lines = [f"Train Epoch: 3 [{sample}/60000 ({sample // 600}%)]\t{loss}" for sample in (0, 59520)]
    assert select_columns(read_mnist([*lines, "", test, ""]).rows, "epoch", "loss", "accuracy") == [
        (3, 0.033435, 0.9842)
    ]


def test_quickstart_of_pytorch() -> None:
    """A line `Epoch 2` names the epoch of the batches and the test below it."""
    lines = []
    for epoch, loss, right, test in ((1, 2.148, 51.0, 2.147386), (2, 1.9, 56.5, 1.877)):
        lines += [f"Epoch {epoch}", "-" * 31, "loss: 2.303494  [   64/60000]", f"loss: {loss}  [57664/60000]"]
        lines += ["Test Error: ", f" Accuracy: {right}%, Avg loss: {test} ", ""]
    assert read_mnist([*lines, "Done!"]).rows == (
        {"epoch": 1, "loss": 2.148, "test_loss": 2.147386, "accuracy": 0.51},
        {"epoch": 2, "loss": 1.9, "test_loss": 1.877, "accuracy": 0.565},
    )
    assert read_mnist_line("loss: 2.303494  [   64/60000]") == {"batch": 64, "batches": 60000, "loss": 2.303494}


def test_batches_without_an_epoch_are_not_rows() -> None:
    """Batches without an epoch are not read, because the batches of all epochs would be in one row."""
    assert read_mnist(["loss: 2.303494  [   64/60000]"]).rows == ()


def test_mnist_scores_without_an_epoch() -> None:
    """Scores before any epoch belong to the summary."""
    metrics = read_mnist(["test acc: 87.12, best acc: 88.5"])
    assert (metrics.rows, metrics.summary) == ((), {"acc": 87.12, "best_acc": 88.5})


def test_mnist_epoch_run_again_counts_once() -> None:
    """An epoch that is run again after a restart loses its old scores."""
    restarted = ["Train Epoch: 0 [0/30]\tloss=2.0000"]
    assert read_mnist([*MNIST, *restarted]).rows[0] == {"epoch": 0, "loss": 2.0}


def test_mnist_loss_of_nan_is_shown() -> None:
    """A nan loss is read as None, as JSON has no nan, and shown as nan."""
    row = read_mnist_line("Train Epoch: 0 [10/30]\tloss=nan")
    assert (row["loss"], describe_row(row)) == (None, "epoch 0: batch 10, batches 30, loss nan")


def test_epoch_without_a_batch_is_a_row() -> None:
    """The accuracy of an epoch of which no batch was printed is a row of this epoch."""
    metrics = read_mnist(["Test Epoch: 3, acc=97.5"])
    assert (metrics.rows, metrics.summary) == (({"epoch": 3, "acc": 97.5},), {})
