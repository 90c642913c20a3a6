"""Plot the metrics of a run as an SVG of bounded size, for a run of any length."""

import base64
import io
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from torchyard.common.escaping import single_line
from torchyard.metrics.registry import ROW_KEYS
from torchyard.model.run import Row

# Panels of a plot, points of a panel, and points up to which each one gets a marker.
_MAX_PANELS = 3
MAX_POINTS = 500
_MAX_MARKED_POINTS = 60
_MAX_LINES = 10  # of a panel
_MAX_DRAWN_VALUE = 1e300  # matplotlib adds margins to what it draws


class PlotPoint(NamedTuple):
    """A point of a panel."""

    x: float
    y: float


def draw_plot(rows: Sequence[Row], columns: Sequence[str]) -> str | None:
    """Every measured value over epoch, step, trial or size, one panel for each value, as an SVG in base64.

    None if there are fewer than two rows, no axis, or no value. The sizes of a benchmark are preferred as the axis; a
    panel has one line for each collective.
    """
    axes = [key for key in ("size", *ROW_KEYS) if rows and key in rows[0] and key in columns]
    names = [key for key in columns if key not in ROW_KEYS and key != "collective"][:_MAX_PANELS]
    if not axes or len(rows) < 2 or not names:
        return None
    axis = axes[0]
    from matplotlib.figure import Figure

    figure = Figure(figsize=(min(4 * len(names), 12), 3), layout="constrained")
    for position, name in enumerate(names, 1):
        panel = figure.add_subplot(1, len(names), position)
        _draw_lines(panel, rows, axis, name)
        panel.set_title(single_line(name, 40), fontsize=10, parse_math=False)
        panel.set_xlabel(axis)
        panel.grid(alpha=0.3)
    svg = io.StringIO()
    figure.savefig(svg, format="svg")
    return base64.b64encode(svg.getvalue().encode()).decode()


def _draw_lines(panel: Any, rows: Sequence[Row], axis: str, name: str) -> None:
    """Draw a value into a matplotlib panel, with a line for each collective."""
    groups = dict.fromkeys(str(row.get("collective", "")) for row in rows)
    for group in list(groups)[:_MAX_LINES]:
        group_rows = [row for row in rows if str(row.get("collective", "")) == group]
        points = thin_points(_list_points(group_rows, axis, name))
        marker = "." if len(points) <= _MAX_MARKED_POINTS else ""
        label = single_line(group, 40).replace("$", "")
        panel.plot(*zip(*points, strict=True), marker=marker, linewidth=1, label=label)
    if len(groups) > 1:
        panel.legend(fontsize=7)
    if axis == "size":
        panel.set_xscale("log", base=2)


def _list_points(rows: Sequence[Row], axis: str, name: str) -> list[PlotPoint]:
    """The points of the rows that have a value on both axes which a panel can show."""
    points: list[PlotPoint] = []
    for row in rows:
        x = row.get(axis)
        y = row.get(name)
        if not isinstance(x, int | float) or not isinstance(y, int | float):
            continue
        if _is_drawable(x) and _is_drawable(y):
            points.append(PlotPoint(float(x), float(y)))
    return points


def _is_drawable(value: float) -> bool:
    """Whether a panel can show the value: JSON integers may be larger than any float."""
    return (isinstance(value, int) or math.isfinite(value)) and abs(value) < _MAX_DRAWN_VALUE


def thin_points(points: Sequence[PlotPoint], max_points: int = MAX_POINTS) -> list[PlotPoint]:
    """At most `max_points` points: both ends, and the lowest and highest of each stretch, so that no peak is lost."""
    if len(points) <= max_points:
        return list(points)
    stretch_length = math.ceil(len(points) / (max_points // 2 - 1))
    extremes: list[PlotPoint] = []
    for start in range(0, len(points), stretch_length):
        stretch = points[start : start + stretch_length]
        extremes += sorted({min(stretch, key=lambda point: point.y), max(stretch, key=lambda point: point.y)})
    return [points[0], *extremes, points[-1]]
