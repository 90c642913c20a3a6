"""Which values of a row are losses that are not finite."""

import pytest

from torchyard.metrics.losses import find_bad_loss
from torchyard.model.run import Row


@pytest.mark.parametrize(
    "name", ["loss", "train_loss", "valLoss", "loss/cls", "box_loss", "discriminator_loss", "LOSS"]
)
def test_loss_that_is_not_finite_is_found(name: str) -> None:
    """A value whose name contains `loss` is a loss."""
    assert find_bad_loss({"epoch": 1, name: None}) == name


@pytest.mark.parametrize("text", ["nan", "NaN", "-inf", " Infinity "])
def test_loss_may_be_printed_as_text(text: str) -> None:
    """A program may print its loss as a text."""
    assert find_bad_loss({"loss": text}) == "loss"


@pytest.mark.parametrize(
    "row",
    [
        {"loss": 0.5},
        {"loss": "see below"},
        {"grad_norm": None},
        {"perplexity": None},
        {"best_val_loss": None},
        {"minLoss": None},
        {"loss_scale": None},
        {},
    ],
)
def test_other_values_may_be_infinite(row: Row) -> None:
    """A finite loss, and values that are infinite in a healthy training, are not reported."""
    assert find_bad_loss(row) is None
