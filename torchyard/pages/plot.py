"""Plots the metrics of a run: an SVG that stays small however long the run was."""

import base64
import io
import math
from collections.abc import Sequence
from typing import Any

from torchyard.common.escaping import single_line
from torchyard.metrics.registry import ROW_KEYS
from torchyard.model.run import Row

# Panels of a plot, points of a panel, and points up to which each one gets a marker.
_MAX_PANELS = 3
_MAX_POINTS = 500
_MAX_MARKED_POINTS = 60
_MAX_LINES = 10  # of a panel
_MAX_DRAWN_VALUE = 1e300  # matplotlib adds margins to what it draws
Point = tuple[float, float]


def draw_plot(rows: Sequence[Row], columns: Sequence[str]) -> str | None:
    """Every measured value over epoch, step, trial or size, one panel each, as base64 SVG; None for less than two rows.

    A benchmark's sizes, of several collectives perhaps, are an axis before its steps; a panel has a line for each.
    """
    axis = next((key for key in ("size", *ROW_KEYS) if rows and key in rows[0] and key in columns), None)
    names = [key for key in columns if key not in ROW_KEYS and key != "collective"][:_MAX_PANELS]
    if axis is None or len(rows) < 2 or not names:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(min(4 * len(names), 12), 3), layout="constrained")
    for place, name in enumerate(names, 1):
        panel = figure.add_subplot(1, len(names), place)
        _draw_lines(panel, rows, axis, name)
        panel.set_title(single_line(name, 40), fontsize=10, parse_math=False)
        panel.set_xlabel(axis)
        panel.grid(alpha=0.3)
    drawing = io.StringIO()
    figure.savefig(drawing, format="svg")
    return base64.b64encode(drawing.getvalue().encode()).decode()


def _draw_lines(panel: Any, rows: Sequence[Row], axis: str, name: str) -> None:
    """Draw a value into a matplotlib panel, with a line for each collective."""
    groups = dict.fromkeys(str(row.get("collective", "")) for row in rows)
    for group in list(groups)[:_MAX_LINES]:
        own = (row for row in rows if str(row.get("collective", "")) == group)
        points = _thin_points([point for row in own if (point := _read_point(row, axis, name))])
        marker, label = "." if len(points) <= _MAX_MARKED_POINTS else "", single_line(group, 40).replace("$", "")
        panel.plot(*zip(*points, strict=True), marker=marker, linewidth=1, label=label)
    if len(groups) > 1:
        panel.legend(fontsize=7)
    if axis == "size":
        panel.set_xscale("log", base=2)


def _read_point(row: Row, axis: str, name: str) -> Point | None:
    """A row's point, if it has one that can be drawn."""
    x, y = row.get(axis), row.get(name)
    if not isinstance(x, int | float) or not isinstance(y, int | float):
        return None
    return (float(x), float(y)) if _is_drawable(x) and _is_drawable(y) else None


def _is_drawable(value: float) -> bool:
    """Whether a panel can show the value: JSON integers may be larger than any float."""
    return (isinstance(value, int) or math.isfinite(value)) and abs(value) < _MAX_DRAWN_VALUE


def _thin_points(points: Sequence[Point], most: int = _MAX_POINTS) -> list[Point]:
    """At most `most` points: both ends, and the lowest and highest of each stretch, so that no peak is lost."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(len(points) / (most // 2 - 1))
    kept: list[Point] = []
    for part in (points[at : at + size] for at in range(0, len(points), size)):
        kept += sorted({min(part, key=lambda each: each[1]), max(part, key=lambda each: each[1])})
    return [points[0], *kept, points[-1]]
