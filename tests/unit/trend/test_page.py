"""A history as a table and as a page of Prefect."""

from pathlib import Path

import pytest

from tests.builders.histories import KEY, TREND, build_history, build_records, draw_noisy_values
from torchyard.trend.page import build_table, find_trend, render_history, render_page
from torchyard.trend.records import History, history_path, store_record


def test_table_shows_each_run_beside_its_band() -> None:
    """A row has the time, the run, the end of its job, its number, the band and the verdict."""
    header, rows = build_table(build_history([100.0] * 6 + [50.0]), TREND)
    assert header == ["when (UTC)", "run", "job", "seconds", "busbw", "usual", "verdict"]
    assert rows[0] == ["1970-01-02 00:00", "sample-00000001", "succeeded", "60.0", "100", "", "unknown"]
    assert rows[-1][4:] == ["50", "97 to 103", "worse"]


def test_table_without_a_trend_shows_the_numbers() -> None:
    """A profile that compares nothing has a table of its numbers."""
    header, rows = build_table(History(tuple(build_records([1.5], trend=None))), None)
    assert (header[4:], rows[0][4:]) == (["busbw", "step"], ["1.5", "3"])


def test_failed_run_has_a_row_without_a_verdict() -> None:
    """A failed job is in the table, without a verdict."""
    assert build_table(History(tuple(build_records([1.0], end="failed"))), TREND).rows[0][2:] == [
        "failed",
        "60.0",
        "",
        "",
        "",
    ]


def test_last_trend_counts() -> None:
    """The page shows the number that was compared last."""
    other = TREND.model_copy(update={"value": "step"})
    assert find_trend(History((*build_records([1.0]), *build_records([1.0], trend=other)))) == other
    assert find_trend(History((*build_records([1.0]), *build_records([1.0], trend=None)))) == TREND


def test_page_has_the_plot_and_the_newest_run_first() -> None:
    """The page shows the key of the history, the plot, and the last 30 runs."""
    page = render_page(build_history(draw_noisy_values(1, 0.01, 60)), TREND)
    assert "![busbw](data:image/svg+xml;base64," in page
    rows = [line for line in page.splitlines() if line.startswith("| 19")]
    assert (len(rows), rows[0].split(" | ")[1]) == (30, "sample-00000060")
    assert len(page) < 200_000


def test_nothing_in_a_history_is_markup() -> None:
    """Text of a history is not markup on the page."""
    hostile = build_records([1.0, 2.0])[0].model_copy(update={"run": "[x](http://y)<script>\n# x | y"})
    page = render_page(History((hostile,)), TREND)
    assert "<script>" not in page.replace("\\<script>", "")
    assert "\n# x" not in page


def test_page_of_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without a compared number there is no page; for a file that cannot be read neither, and a warning is logged."""
    path = history_path(tmp_path, KEY)
    assert render_history(str(path)) is None
    store_record(path, build_records([2.0], trend=None)[0].model_copy(update={"run": "first"}))
    assert render_history(str(path)) is None
    store_record(path, build_records([1.0])[0])
    assert "sample" in (render_history(str(path)) or "")
    path.unlink()
    path.mkdir()
    assert render_history(str(path)) is None
    assert "cannot show the history" in caplog.text
