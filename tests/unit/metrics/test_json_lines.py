"""One JSON object per line: rows, and the summary of the run."""

import json

import pytest

from torchyard.metrics.json_lines import parse_object, read_json_lines
from torchyard.metrics.registry import get_line_reader

ROWS = [{"epoch": epoch, "epochs": 3, "accuracy": 0.5 + epoch / 10, "world_size": 2} for epoch in (1, 2, 3)]
LINES = ["rank 0 of 2", *(json.dumps(row) for row in ROWS), "{torn", '{"best": 0.8}']


def test_object_with_an_epoch_is_a_row_and_others_are_the_summary() -> None:
    """An object with an epoch is a row; one without belongs to the summary."""
    metrics = read_json_lines(LINES)
    assert [row["epoch"] for row in metrics.rows] == [1, 2, 3]
    assert metrics.summary == {"best": 0.8}


def test_repeated_row_replaces_the_earlier_one() -> None:
    """A resumed program that repeats an epoch replaces its row."""
    metrics = read_json_lines([*LINES, '{"epoch": 3, "accuracy": 0.9}'])
    assert [row["accuracy"] for row in metrics.rows] == [0.6, 0.7, 0.9]


def test_lines_of_one_epoch_are_one_row() -> None:
    """A program that prints the losses of training and validation as two lines of an epoch has both in its row."""
    lines = ['{"epoch": 1, "train_loss": 0.9}', '{"epoch": 1, "val_loss": 1.1}', '{"epoch": 2, "train_loss": 0.8}']
    assert read_json_lines(lines).rows == (
        {"epoch": 1, "train_loss": 0.9, "val_loss": 1.1},
        {"epoch": 2, "train_loss": 0.8},
    )


def test_report_of_a_checkpoint_is_not_a_row() -> None:
    """The report of a checkpoint changes no row, also if it has the same step, and is not a value of the run."""
    reports = [json.dumps({"checkpoint": f"step-{step}", "step": step}) for step in (0, 5, 9)]
    metrics = read_json_lines([reports[0], '{"step": 5, "loss": 0.5}', *reports[1:]])
    assert metrics.rows == ({"step": 5, "loss": 0.5},)
    assert metrics.summary == {}
    read_line = get_line_reader("json-lines")
    assert [read_line(report) for report in reports] == [{}] * len(reports)
    assert read_line('{"checkpoint": "/saved/1", "step": 5, "loss": 0.5}')["loss"] == 0.5


def test_nested_values_are_left_out() -> None:
    """Only plain values of an object are metrics."""
    assert parse_object('  {"epoch": 1, "all": [1, 2], "x": {"y": 1}}') == {"epoch": 1}


def test_half_of_a_surrogate_pair_can_be_reported() -> None:
    """A report can be written even if a JSON line has a character that UTF-8 cannot encode."""
    assert '"name":"?"' in read_json_lines(['{"name": "\\ud800"}']).model_dump_json()


def test_collectives_of_the_same_size_are_separate_rows() -> None:
    """Rows of two collectives with the same size do not replace each other; the same one's later row does."""
    rows = [("all_reduce", 1024, 1.0), ("all_gather", 1024, 2.0), ("all_reduce", 1024, 3.0)]
    lines = [json.dumps({"collective": name, "size": size, "busbw": busbw}) for name, size, busbw in rows]
    kept_rows = read_json_lines(lines).rows
    assert [(row["collective"], row["busbw"]) for row in kept_rows] == [("all_reduce", 3.0), ("all_gather", 2.0)]


def test_pairs_and_slow_nodes_are_rows() -> None:
    """What pairwise.py prints is a row for each pair and each slow node, and a summary with the verdict."""
    pair = {"step": 1, "round": 1, "node": "a", "peer": "b", "busbw": 0.3, "ratio": 0.3, "slow": True}
    node = {"step": 2, "node": "b", "busbw": 0.3, "ratio": 0.3, "slow": True}
    metrics = read_json_lines(map(json.dumps, (pair, node, {"verdict": "1 of 8 nodes is slow", "rounds": 2})))
    assert (metrics.rows, metrics.summary) == ((pair, node), {"verdict": "1 of 8 nodes is slow", "rounds": 2})


def test_numbers_that_json_cannot_hold_are_none() -> None:
    """NaN and Infinity, which Python writes, are None in a row; null is left out."""
    row = parse_object('{"epoch": 1, "loss": NaN, "lr": -Infinity, "scale": 1e999, "accuracy": null}')
    assert row == {"epoch": 1, "loss": None, "lr": None, "scale": None}


@pytest.mark.parametrize(
    "prefix",
    [
        "\r  0%|          | 0/10 [00:00<?, ?it/s]\r 10%|#         | 1/10 [00:00<00:01,  9.1it/s]",
        "\r3it [00:00,  9.1it/s]",
        "[1,0]<stdout>:",
        "0: ",
        "2026-11-21T08:00:47.123Z ",
    ],
    ids=["bar", "bar without a total", "mpirun", "srun", "time"],
)
def test_row_behind_a_progress_bar_or_a_prefix_is_read(prefix: str) -> None:
    """A program that prints a row while it draws a progress bar does not end the bar's line; launchers add prefixes."""
    assert read_json_lines([f"{prefix}{line}" for line in LINES]).rows == tuple(ROWS)


def test_object_in_a_sentence_is_no_row() -> None:
    """An object that a program logs with words in front of it is not a row."""
    assert read_json_lines(['resumed with {"epoch": 3}', 'INFO - {"epoch": 3}']).rows == ()
