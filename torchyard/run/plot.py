"""The metrics of a run as a picture: an SVG that stays small however long the run was."""

import base64
import io
import math
from collections.abc import Sequence

from torchyard.common.escaping import single_line
from torchyard.metrics.registry import ROW_KEYS
from torchyard.model.run import Row

# A picture's, at most; a panel's, at most; up to so many are marked.
_MAX_PANELS = 3
_MAX_POINTS = 500
_MAX_MARKED_POINTS = 60
_MAX_DRAWN_VALUE = 1e300  # matplotlib adds margins to what it draws
Point = tuple[float, float]


def draw_plot(rows: Sequence[Row], columns: Sequence[str]) -> str | None:
    """Every measured value over epoch, step or trial, one panel each, as SVG in base64; None without two rows."""
    axis = next((key for key in ROW_KEYS if rows and key in rows[0]), None)
    names = [key for key in columns if key != axis][:_MAX_PANELS]
    if axis is None or len(rows) < 2 or not names:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(min(4 * len(names), 12), 3), layout="constrained")
    for place, name in enumerate(names, 1):
        points = _thin_points([point for row in rows if (point := _read_point(row, axis, name))])
        panel = figure.add_subplot(1, len(names), place)
        panel.plot(*zip(*points, strict=True), marker="." if len(points) <= _MAX_MARKED_POINTS else "", linewidth=1)
        panel.set_title(single_line(name, 40), fontsize=10, parse_math=False)
        panel.set_xlabel(axis)
        panel.grid(alpha=0.3)
    drawing = io.StringIO()
    figure.savefig(drawing, format="svg")
    return base64.b64encode(drawing.getvalue().encode()).decode()


def _read_point(row: Row, axis: str, name: str) -> Point | None:
    """A row's point, if it has one that can be drawn."""
    x, y = row.get(axis), row.get(name)
    if not isinstance(x, int | float) or not isinstance(y, int | float):
        return None
    return (float(x), float(y)) if _is_drawable(x) and _is_drawable(y) else None


def _is_drawable(value: float) -> bool:
    """Whether a panel has room for it: JSON's integers may be longer than any float."""
    return (isinstance(value, int) or math.isfinite(value)) and abs(value) < _MAX_DRAWN_VALUE


def _thin_points(points: Sequence[Point], most: int = _MAX_POINTS) -> list[Point]:
    """At most so many: of each stretch the lowest and the highest, so that no peak is lost. Ends are kept."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(len(points) / (most // 2 - 1))
    kept: list[Point] = []
    for part in (points[at : at + size] for at in range(0, len(points), size)):
        kept += sorted({min(part, key=lambda each: each[1]), max(part, key=lambda each: each[1])})
    return [points[0], *kept, points[-1]]
