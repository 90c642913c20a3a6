"""The plot of a run's metrics: small, for any values and names, and without a script."""

import base64
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.reports import ROWS, report
from torchyard.charts.chart import Point
from torchyard.model.run import Metrics, Row
from torchyard.pages.plot import MAX_POINTS, draw_plot, thin_points
from torchyard.pages.report import MAX_PAGE_BYTES, render_markdown


def test_one_row_makes_no_plot() -> None:
    """A curve needs two points."""
    assert draw_plot(Metrics(rows=(ROWS[0],)).rows, list(ROWS[0])) is None


def test_page_of_a_long_run_has_its_plot() -> None:
    """The plot of 100,000 rows is thinned, not left out."""
    rows: tuple[Row, ...] = tuple(
        {"step": step, "loss": step * 7919 % 10007, "rate": step * 104729 % 9973, "x": step * 31 % 8191}
        for step in range(100_000)
    )
    text = render_markdown(report(rows=(*rows, {"step": 100_000, "loss": 1.0, "rate": 0.2, "x": 1})))
    assert "data:image/svg+xml;base64," in text
    assert len(text) < MAX_PAGE_BYTES


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=3_000))
@settings(max_examples=30)
def test_thinned_curve_keeps_its_peaks_and_ends(values: list[float]) -> None:
    """A thinned curve keeps its first and last point, its minimum and its maximum, in order."""
    points = [Point(float(x), y) for x, y in enumerate(values)]
    thinned = thin_points(points)
    assert len(thinned) <= MAX_POINTS
    assert [thinned[0], thinned[-1]] == [points[0], points[-1]]
    assert (min(point.y for point in thinned), max(point.y for point in thinned)) == (min(values), max(values))
    assert thinned == sorted(thinned)


@pytest.mark.parametrize(
    "value", [10**400, float("inf"), float("nan"), 1e308, "text", None, True, "$\\frac$", "$x$", "<b>"]
)
def test_any_value_and_name_of_a_metric_can_be_drawn(value: float | str | None) -> None:
    """A value or name that cannot be drawn is left out of the plot, and the page is still rendered."""
    key = value if isinstance(value, str) else "loss"
    rows: tuple[Row, ...] = ({"step": 1, key: 1.0, "x": 2}, {"step": 2, key: value, "x": 3})
    assert "data:image/svg+xml;base64," in render_markdown(report(rows=rows))


def test_plot_is_svg_without_a_script() -> None:
    """A metric's name cannot put a script into the SVG."""
    rows: tuple[Row, ...] = ({"step": 1, "<script>": 1.0}, {"step": 2, "<script>": 2.0})
    match = re.search(r"base64,([\w+/=]+)", render_markdown(report(rows=rows)))
    assert match
    assert b"<script" not in base64.b64decode(match[1])


def test_each_collective_has_its_line_over_the_sizes() -> None:
    """A benchmark's panels show bandwidths over sizes, with a line and a label for each collective."""
    rows: tuple[Row, ...] = tuple(
        {"step": step, "collective": name, "size": 2**step, "busbw": step / 10}
        for name in ("all_reduce", "all_gather")
        for step in (1, 2, 3)
    )
    svg = draw_plot(rows, list(rows[0])) or ""
    assert svg.count("<polyline") == 2
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert [text for text in texts if text.startswith(("size", "busbw", "all_"))] == [
        "busbw",
        "size",
        "all_reduce",
        "all_gather",
    ]


def test_value_without_a_number_takes_no_panel() -> None:
    """The path of a checkpoint in each row leaves the three panels to values that have curves."""
    rows: tuple[Row, ...] = tuple(
        {"checkpoint": f"/runs/{step}", "step": step, "loss": 1 / step, "accuracy": 0.5 * step, "rate": 7.0 + step}
        for step in (1, 2, 3)
    )
    plot = draw_plot(rows, list(rows[0]))
    assert plot
    assert [name for name in ("checkpoint", "loss", "accuracy", "rate") if f">{name}<" in plot] == [
        "loss",
        "accuracy",
        "rate",
    ]
