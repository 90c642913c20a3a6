"""What rank 0 printed, as rows."""

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tasks.logs import rank_zero, read_line
from tasks.metrics import describe, read_json_lines, read_object, read_progress
from tasks.model import Attempt, Collected, Failure, LogFile, LogLine, Metrics, Outcome, Report, Status, Step
from tasks.report import as_markdown, as_text, plot, span

ROWS = [{"epoch": at, "epochs": 3, "accuracy": 0.5 + at / 10, "world_size": 2} for at in (1, 2, 3)]
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


@given(st.lists(st.text()))
def test_any_text_can_be_read(lines: list[str]) -> None:
    """No line that a program prints makes the reader fail."""
    read_json_lines(lines)


def test_nested_values_are_left_out() -> None:
    """Only plain values of an object are metrics."""
    assert read_object('  {"epoch": 1, "all": [1, 2], "x": {"y": 1}}') == {"epoch": 1}


def test_progress_is_part_of_the_total() -> None:
    """Epoch 1 of 4 is a quarter; a row without a total says nothing."""
    assert (read_progress({"epoch": 1, "epochs": 4}), read_progress({"epoch": 1})) == (0.25, None)


def test_row_in_words() -> None:
    """A row reads as a line without its total."""
    assert describe({"epoch": 3, "epochs": 9, "accuracy": 0.97222}) == "epoch 3: accuracy 0.9722"


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
    zero = rank_zero(iter(agent(0, "[default0]:mine", "[default1]:other", "agent")))
    one = rank_zero(iter(agent(1, "[default0]:not mine")))
    assert ([line.text for line in zero], list(one)) == (["mine"], [])


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
    text = as_text(report())
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
    assert "| Boom: 1" in as_text(report("failed"))
    assert "Boom" not in as_text(report("cancelled"))


def test_markdown_holds_the_plot() -> None:
    """The artifact has the picture inside, and stays small."""
    text = as_markdown(report())
    assert "data:image/svg+xml;base64," in text
    assert len(text) < 200_000


def test_one_row_makes_no_plot() -> None:
    """A curve needs two points."""
    assert plot(Metrics(rows=(ROWS[0],))) is None


def test_spans_read_well() -> None:
    """Seconds, minutes and hours as a person says them."""
    assert [span(each) for each in (0.25, 38.2, 761, 7500)] == ["0.2 s", "38 s", "12 min 41 s", "2 h 05 min"]


def test_report_survives_the_disk(tmp_path: Path) -> None:
    """report.json is the report."""
    (tmp_path / "report.json").write_text(report("failed").model_dump_json())
    assert Report.model_validate_json((tmp_path / "report.json").read_text()) == report("failed")
