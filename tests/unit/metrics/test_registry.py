"""What all formats have in common: their readers, a row's progress, and a row in words."""

import json
from itertools import accumulate
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.doubles.installed_packages import InstalledPackages
from tests.inputs.printed_metrics import load_posted_log
from torchyard.metrics.allreduce_bench import read_allreduce_bench
from torchyard.metrics.nccl_tests import read_nccl_tests
from torchyard.metrics.registry import (
    LINE_READERS,
    READERS,
    describe_row,
    find_metrics_problem,
    format_number,
    get_line_reader,
    get_progress,
    get_reader,
    parse_row,
)
from torchyard.model.profile import MetricsFormat

# What programs/allreduce.py prints before a program whose fabric is checked.
CHECKED = json.dumps({"check_fabric": {"collective": "all_reduce", "size": 1 << 30, "busbw": 12.5, "wrong": 0}})


@pytest.mark.parametrize("name", READERS)
def test_check_of_the_fabric_is_not_a_metric(name: MetricsFormat) -> None:
    """The output of the check before a program is not read as the program's, in any format."""
    metrics = READERS[name]([CHECKED])
    assert (metrics.rows, metrics.summary) == ((), {})
    assert LINE_READERS[name]()(CHECKED) == {}


# Pieces of lines of the formats, which are combined at random.
PIECES = (
    "8",
    " 1048576 ",
    "float ",
    "sum ",
    "-1 ",
    "0.00  ",
    "nan ",
    "inf ",
    "1e400 ",
    "9" * 30,
    "N/A ",
    "# ",
    "\r",
    "\x1b[1m",
    "size count type",
    "bytes N type",
    "Avg bus bandwidth : ",
    "Out of bounds values : ",
    "FAILED",
    "all_reduce_perf",
    "| ",
    "GBps ",
    "Gbps",
    "KiB: ",
    "payload ",
    "busbw: ",
    "algbw: ",
    "duration: ",
    " sec",
    "0:",
    "Elapsed time: 1:2:3",
    "bandwidth of all_reduce ",
    "ranks ",
    "Train Epoch: ",
    "[",
    "/",
    "] ",
    "loss=",
    "test acc: ",
    ", best acc: ",
    "acc=",
    "Test set: Average loss: ",
    ", Accuracy: ",
    "0/0",
    '{"epoch": ',
    "}",
    "all ",
    ", ",
    "h1:1:2 [0] NCCL INFO nranks 2",
    "iter 1: ",
    "train loss ",
    "loss: ",
    "{'loss': '",
    "', 'epoch': ",
    "Epoch 1: ",
    "it/s, ",
    "Epoch: [0][1/2]",
    " * Acc@1 ",
)
TEXTS = st.lists(st.text() | st.lists(st.sampled_from(PIECES), max_size=16).map("".join), max_size=12)


@pytest.mark.parametrize("name", READERS)
@given(lines=TEXTS)
def test_any_text_can_be_read(name: MetricsFormat, lines: list[str]) -> None:
    """No text makes a reader fail, or the report that holds its result."""
    dumped = READERS[name](lines).model_dump_json()
    json.loads(dumped, parse_constant=pytest.fail)
    for line in lines:
        row = LINE_READERS[name]()(line)
        assert isinstance(describe_row(row), str)
        progress = get_progress(row)
        assert progress is None or 0 <= progress.share <= 1


@pytest.mark.parametrize("name", READERS)
def test_nothing_is_read_from_nothing(name: MetricsFormat) -> None:
    """An empty log, and that of another program, have no metrics."""
    for lines in ([], ["", "Traceback (most recent call last):", "  12 34", "50%|###   | 1/2", "KeyError: 'x'"]):
        metrics = READERS[name](lines)
        assert (metrics.rows, metrics.summary) == ((), {})


@pytest.mark.parametrize("name", ["nccl-tests-old", "nccl-tests-torn", "allreduce-2021", "allreduce-2024"])
def test_truncated_log_gives_no_wrong_row(name: str) -> None:
    """A log that is cut anywhere gives rows of the complete log, or parts of such rows."""
    read = read_nccl_tests if name.startswith("nccl") else read_allreduce_bench
    lines = load_posted_log(name)
    complete_rows = read(lines).rows
    for text in accumulate(line + "\n" for line in lines):
        for cut_chars in range(0, 40, 3):
            rows = read(text[: len(text) - cut_chars].split("\n")).rows
            assert all(
                row.items() <= complete_row.items() for row, complete_row in zip(rows, complete_rows, strict=False)
            )


def test_every_format_has_its_readers() -> None:
    """Every format that a profile may name can be read while the job runs and at its end."""
    assert set(get_args(MetricsFormat)) == set(READERS) == set(LINE_READERS)


def test_progress_is_part_of_the_total() -> None:
    """Epoch 1 of 4 is a quarter; a row without a total gives no progress."""
    assert get_progress({"epoch": 1, "epochs": 4}) == ("epoch", 1, 4, 0.25)
    assert get_progress({"epoch": 1}) is None


@pytest.mark.parametrize("done", ["NaN", "-1", "1" + "0" * 400])
def test_progress_needs_a_number(done: str) -> None:
    """A value that cannot be a count gives no progress."""
    assert get_progress(parse_row(f'{{"epoch": {done}, "epochs": 3}}')) is None


def test_no_number_reads_as_nan() -> None:
    """JSON has no nan and stores null, which is shown as nan again."""
    assert (format_number(None), format_number(float("nan"))) == ("nan", "nan")


def test_row_in_words() -> None:
    """A row is described in one line, without its total."""
    assert describe_row({"epoch": 3, "epochs": 9, "accuracy": 0.97222}) == "epoch 3: accuracy 0.9722"


LOSS = "[torchyard.metrics]\nloss = ty_loss:read_line\n"
READ_LOSS = """
def read_line(line):
    if line == "bad row":
        return {"loss": [1]}
    if line == "infinite":
        return {"loss": float("inf")}
    if not line.startswith("step"):
        return {"model": line} if line else None
    _, step, loss = line.split()
    return {"step": int(step), "loss": float(loss)}
"""


def test_format_of_another_package_is_read(packages: InstalledPackages) -> None:
    """The rows of another package's line reader are the metrics; a row without a step belongs to the summary."""
    packages.install("ty-loss", LOSS, ty_loss=READ_LOSS)
    assert find_metrics_problem("loss") is None
    assert get_line_reader("loss")("step 1 0.5") == {"step": 1, "loss": 0.5}
    metrics = get_reader("loss")(["", "tiny", "step 1 0.5", "step 2 0.25", "step 2 0.2"])
    assert metrics.rows == ({"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.2})
    assert metrics.summary == {"model": "tiny"}


def test_infinite_value_of_another_package_is_none(packages: InstalledPackages) -> None:
    """A reader of another package may return nan and infinity, which are None in a row."""
    packages.install("ty-loss", LOSS, ty_loss=READ_LOSS)
    assert get_line_reader("loss")("infinite") == {"loss": None}


@pytest.mark.parametrize("line", ["step one 0.5", "step", "bad row"])
def test_reader_that_fails_loses_only_its_line(
    packages: InstalledPackages, caplog: pytest.LogCaptureFixture, line: str
) -> None:
    """A line for which the reader raises, or returns something other than a row, is one warning and has no row."""
    packages.install("ty-loss", LOSS, ty_loss=READ_LOSS)
    read_line = get_line_reader("loss")
    assert [read_line(text) for text in (line, line, "step 1 0.5")] == [{}, {}, {"step": 1, "loss": 0.5}]
    assert caplog.text.count("metrics: the reader loss failed: ") == 1


def test_format_that_is_gone_reads_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A run whose package was uninstalled meanwhile has no metrics, and a warning."""
    assert get_reader("loss")(["step 1 0.5"]).rows == ()
    assert "metrics: must be one of none, json-lines," in caplog.text


def test_unusable_format_is_an_error_that_lists_the_choices(packages: InstalledPackages) -> None:
    """The error for an unknown format lists torchyard's formats and those of packages."""
    packages.install("ty-loss", LOSS, ty_loss="")
    finding = find_metrics_problem("los")
    assert str(finding) == (
        "metrics: must be one of none, json-lines, step-lines, huggingface, lightning, imagenet, yolov5, mnist, "
        "allreduce-bench, nccl-tests, loss, not los; or install the package that has it"
    )
    assert "ty-loss 1.0" in str(find_metrics_problem("loss"))
