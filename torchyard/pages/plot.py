"""Plot the metrics of a run as an SVG of bounded size, for a run of any length."""

import math
from collections.abc import Sequence

from torchyard.charts.chart import Line, Panel, Point, Scale
from torchyard.charts.svg import render_svg
from torchyard.common.escaping import single_line
from torchyard.metrics.registry import ROW_KEYS
from torchyard.model.run import Row

# Panels of a plot, points of a panel, and points up to which each one gets a dot.
_MAX_PANELS = 3
MAX_POINTS = 500
_MAX_DOTS = 60
_MAX_LINES = 10  # of a panel
_PANEL_PIXELS = (320, 230)


def draw_plot(rows: Sequence[Row], columns: Sequence[str]) -> str | None:
    """Every measured value over epoch, step, trial or size, one panel for each value, as SVG.

    None if there are fewer than two rows, no axis, or no value. The sizes of a benchmark are preferred as the axis; a
    panel has one line for each collective.
    """
    axes = [key for key in ("size", *ROW_KEYS) if rows and key in rows[0] and key in columns]
    names = [key for key in columns if key not in ROW_KEYS and key != "collective" and _has_number(rows, key)]
    if not axes or len(rows) < 2 or not names:
        return None
    width, height = _PANEL_PIXELS
    panels = [_build_panel(rows, axes[0], name) for name in names[:_MAX_PANELS]]
    return render_svg(panels, columns=len(panels), width=width, height=height)


def _has_number(rows: Sequence[Row], key: str) -> bool:
    """Whether a value can be drawn: not the path of a checkpoint, nor a loss that is always nan."""
    return any(_read_number(row.get(key)) is not None for row in rows)


def _build_panel(rows: Sequence[Row], axis: str, name: str) -> Panel:
    """A value over the axis, with a line for each collective."""
    groups = list(dict.fromkeys(str(row.get("collective", "")) for row in rows))
    lines: list[Line] = []
    for group in groups[:_MAX_LINES]:
        group_rows = [row for row in rows if str(row.get("collective", "")) == group]
        points = thin_points(_list_points(group_rows, axis, name))
        label = single_line(group, 40) if len(groups) > 1 else ""
        lines.append(Line(points, label=label, has_dots=len(points) <= _MAX_DOTS))
    scale: Scale = "log2" if axis == "size" else "linear"
    return Panel(single_line(name, 40), lines, x_label=axis, x_scale=scale)


def _list_points(rows: Sequence[Row], axis: str, name: str) -> list[Point]:
    """The points of the rows that have a finite number on both axes."""
    points: list[Point] = []
    for row in rows:
        x = _read_number(row.get(axis))
        y = _read_number(row.get(name))
        if x is not None and y is not None:
            points.append(Point(x, y))
    return points


def _read_number(value: object) -> float | None:
    """A value as a finite float; None for one that is not a number, or is infinite: JSON integers may have any size."""
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def thin_points(points: Sequence[Point], max_points: int = MAX_POINTS) -> list[Point]:
    """At most `max_points` points: both ends, and the lowest and highest of each stretch, so that no peak is lost."""
    if len(points) <= max_points:
        return list(points)
    stretch_length = math.ceil(len(points) / (max_points // 2 - 1))
    extremes: list[Point] = []
    for start in range(0, len(points), stretch_length):
        stretch = points[start : start + stretch_length]
        extremes += sorted({min(stretch, key=lambda point: point.y), max(stretch, key=lambda point: point.y)})
    return [points[0], *extremes, points[-1]]
