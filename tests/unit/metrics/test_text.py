"""Text as a terminal shows it: the prefixes of launchers, and numbers that JSON cannot contain."""

import pytest

from tests.inputs.printed_metrics import HEADER, MNIST, ROW
from torchyard.metrics.allreduce_bench import read_allreduce_bench, read_allreduce_bench_line
from torchyard.metrics.mnist import read_mnist
from torchyard.metrics.nccl_tests import read_nccl_tests
from torchyard.metrics.text import parse_finite, split_terminal_lines, strip_prefixes

PREFIXES = (
    "",
    "[0:0]:",
    "[default0]:",
    "[1,0]<stdout>:",
    "2026-11-21T08:00:47.123Z ",
    "[2026-11-21 08:00:47,123] ",
    "0: ",
)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefix_of_a_launcher_does_not_hide_a_line(prefix: str) -> None:
    """The prefix that a launcher writes does not hide a line."""
    assert read_mnist([prefix + line for line in MNIST]) == read_mnist(MNIST)
    assert len(read_nccl_tests([prefix + HEADER, prefix + ROW]).rows) == 1
    rates = [" algbw: 1.939 GBps (15.5 Gbps)", " busbw: 3.635 GBps (29.1 Gbps)"]
    assert read_allreduce_bench([prefix + rate for rate in rates]).rows == ({"algbw": 1.939, "busbw": 3.635},)
    assert read_allreduce_bench_line(prefix + "7") == {"trial": 7}


def test_terminal_shows_each_state_of_a_line() -> None:
    """A carriage return starts a new line, as it redraws a progress bar; colours are removed."""
    lines = ["plain", "\r 1/2\r 2/2", "\x1b[34m\x1b[1mtrain: \x1b[0mdone"]
    assert list(split_terminal_lines(lines)) == ["plain", "", " 1/2", " 2/2", "train: done"]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("2026-11-21T08:00:47.123Z [default0]: loss 1", " loss 1"),
        ("2026-11-21 08:00:47,123 | [1,0]<stdout>:loss 1", "loss 1"),
        ("(worker, rank=0) 0: loss 1", " loss 1"),
        ("loss [1] (2)", "loss [1] (2)"),
        ("12:34 loss", "12:34 loss"),
    ],
)
def test_prefixes_of_launchers_are_stripped(line: str, text: str) -> None:
    """All prefixes are removed; brackets and numbers that the program printed are kept."""
    assert strip_prefixes(line) == text


@pytest.mark.parametrize(
    ("text", "value"), [("1e-07", 1e-07), ("-3", -3.0), ("nan", None), ("inf", None), ("1e999", None)]
)
def test_number_that_json_cannot_hold_is_none(text: str, value: float | None) -> None:
    """A number that JSON cannot contain is stored as null."""
    assert parse_finite(text) == value
