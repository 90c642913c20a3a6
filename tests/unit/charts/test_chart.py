"""Which points of a chart can be shown."""

import math

from torchyard.charts.chart import Band, Line, Marks, Panel, Point, list_points, select_drawable


def test_points_without_a_place_are_left_out() -> None:
    """A value that is not finite, or so large that a difference of two would not be, has no place on an axis."""
    points = [Point(1, 2), Point(2, math.nan), Point(math.inf, 1), Point(3, 1e301), Point(4, 5)]
    assert select_drawable(points, "linear") == [Point(1, 2), Point(4, 5)]


def test_logarithm_needs_a_positive_x() -> None:
    """Zero and negative sizes have no logarithm; on other scales they are values like others."""
    points = [Point(-1, 1), Point(0, 1), Point(2, 1)]
    assert select_drawable(points, "log2") == [Point(2, 1)]
    assert select_drawable(points, "linear") == points


def test_all_parts_of_a_panel_have_points() -> None:
    """The points of lines, bands and marks determine the axes."""
    panel = Panel(
        "busbw",
        [Line([Point(1, 1)])],
        bands=[Band([Point(2, 1)], [Point(2, 3)])],
        marks=[Marks([Point(3, 1)], "#d62728", "down")],
    )
    assert [point.x for point in list_points(panel)] == [1, 2, 2, 3]
