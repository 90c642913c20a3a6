"""A chart as data: panels with lines, bands and marks."""

import math
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

Scale = Literal["linear", "log2", "time"]
_MAX_VALUE = 1e300  # beyond it, the difference of two values may be infinite


class Point(NamedTuple):
    """A point of a panel. `x` of a time scale: seconds since the epoch."""

    x: float
    y: float


class Line(NamedTuple):
    """Points that are connected in their order.

    color: "" for the next one of the palette.
    label: in the legend; a line without one is not listed there.
    """

    points: Sequence[Point]
    label: str = ""
    color: str = ""
    is_dashed: bool = False
    has_dots: bool = False


class Band(NamedTuple):
    """The area between two lines over the same x."""

    low: Sequence[Point]
    high: Sequence[Point]


class Marks(NamedTuple):
    """Triangles of one color."""

    points: Sequence[Point]
    color: str
    direction: Literal["up", "down"]


class Panel(NamedTuple):
    """One pair of axes. `starts_at_zero`: the y-axis contains 0."""

    title: str
    lines: Sequence[Line]
    x_label: str = ""
    y_label: str = ""
    bands: Sequence[Band] = ()
    marks: Sequence[Marks] = ()
    x_scale: Scale = "linear"
    starts_at_zero: bool = False


def select_drawable(points: Sequence[Point], x_scale: Scale) -> list[Point]:
    """The points that a panel can show: both values are finite, and x has a logarithm where the scale is one."""
    drawable: list[Point] = []
    for point in points:
        if x_scale == "log2" and point.x <= 0:
            continue
        if all(math.isfinite(value) and abs(value) < _MAX_VALUE for value in point):
            drawable.append(point)
    return drawable


def list_points(panel: Panel) -> Iterator[Point]:
    """All points of a panel that it can show."""
    for line in panel.lines:
        yield from select_drawable(line.points, panel.x_scale)
    for band in panel.bands:
        yield from select_drawable(band.low, panel.x_scale)
        yield from select_drawable(band.high, panel.x_scale)
    for marks in panel.marks:
        yield from select_drawable(marks.points, panel.x_scale)
