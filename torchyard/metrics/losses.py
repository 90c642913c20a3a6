"""Losses that are not finite numbers: a training that continues with one learns nothing more."""

import re

from torchyard.model.run import Row, RowValue

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
# Beside `loss` in a name, each of these makes it another value, which may be infinite in a healthy training: the best
# loss before the first validation, and the factor by which automatic mixed precision multiplies a loss.
_OTHER_VALUES = frozenset({"best", "min", "minimum", "lowest", "smallest", "scale", "scaler"})


def find_bad_loss(row: Row) -> str | None:
    """The name of the first loss in a row that is nan or infinite; None if there is none.

    A loss is a value whose name contains `loss`. Other values may be nan in a healthy training: with mixed precision a
    gradient norm is infinite whenever the scale is too high, and the step is skipped.
    """
    for name, value in row.items():
        if _is_loss(name) and (value is None or _is_text_of_bad_number(value)):
            return name
    return None


def _is_text_of_bad_number(value: RowValue) -> bool:
    """Whether a program has printed such a number as a text, as in `{"loss": "nan"}`."""
    return isinstance(value, str) and value.strip().lower().lstrip("+-") in ("nan", "inf", "infinity")


def _is_loss(name: str) -> bool:
    words = {word.lower() for word in _WORD.findall(name)}
    return "loss" in name.lower() and not words & _OTHER_VALUES
