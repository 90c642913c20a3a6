"""Draws a chart as SVG, without a script and without a file beside it, for a light and for a dark page.

The background is transparent, and each color has a contrast of at least 3 to white and to black, that of text 4.5. A
page's own colors cannot be used: in an embedded picture `prefers-color-scheme` is that of the system, not of the page.

Prefect's pages show an SVG that is embedded in Markdown as a picture, so a chart needs no program that draws it: a few
kilobytes of text are written in a millisecond. matplotlib takes more than a second and 47 MiB in the process of each
run, and 160 MB on disk.
"""

import html
from collections.abc import Sequence
from typing import NamedTuple

from torchyard.charts.axis import Axis, fit_axis
from torchyard.charts.chart import Line, Marks, Panel, Point, list_points, select_drawable

PALETTE = (
    "#2a84c6",
    "#d95f02",
    "#2ca02c",
    "#d62728",
    "#9467bd",
    "#a0623d",
    "#d053a8",
    "#7f7f7f",
    "#8f8f00",
    "#0e8c9a",
)
GRAY = "#767676"  # of text and frames: a contrast of 4.5 to white, and of 4.6 to black
_FONT_SIZE = 11
_CHAR_WIDTH = 6.2  # of a usual letter in this size; the SVG names no font that could be measured
_LINE_HEIGHT = 16
_GAP = 8
_KEY_WIDTH = 18  # the piece of line beside a label of the legend
_TRIANGLES = {"up": (-4.0, 4.0, 0.0, -4.0, 4.0, 4.0), "down": (-4.0, -4.0, 0.0, 4.0, 4.0, -4.0)}


class _Frame(NamedTuple):
    """The rectangle of a panel's curves in pixels, and its axes."""

    left: float
    top: float
    width: float
    height: float
    x_axis: Axis
    y_axis: Axis

    @property
    def bottom(self) -> float:
        return self.top + self.height

    def get_x(self, value: float) -> float:
        return self.left + self.width * self.x_axis.place(value)

    def get_y(self, value: float) -> float:
        return self.bottom - self.height * self.y_axis.place(value)

    def format_points(self, points: Sequence[Point]) -> str:
        """Points as `x,y x,y`, with the precision of a tenth of a pixel."""
        return " ".join(f"{self.get_x(point.x):.1f},{self.get_y(point.y):.1f}" for point in points)


def render_svg(panels: Sequence[Panel], *, columns: int, width: int, height: int) -> str:
    """The panels in rows of `columns`, each with this width and height in pixels; legends are added to the height."""
    legends = [_lay_out_legend(panel, width) for panel in panels]
    elements: list[str] = []
    top = 0
    for start in range(0, len(panels), columns):
        row_legends = legends[start : start + columns]
        for index, panel in enumerate(panels[start : start + columns]):
            drawn = "".join(_draw_panel(panel, row_legends[index], width, height))
            elements.append(f'<g transform="translate({index * width},{top})">{drawn}</g>\n')
        top += height + _LINE_HEIGHT * max(len(legend) for legend in row_legends)
    total_width = width * min(columns, len(panels))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total_width}" height="{top}" '
        f'viewBox="0 0 {total_width} {top}" font-family="sans-serif" font-size="{_FONT_SIZE}" fill="{GRAY}">\n'
        f"{''.join(elements)}</svg>\n"
    )


def _draw_panel(panel: Panel, legend: Sequence[Sequence[Line]], width: int, height: int) -> list[str]:
    """The elements of a panel, whose upper left corner is 0, 0."""
    points = list(list_points(panel))
    x_axis = fit_axis(panel.x_scale, [point.x for point in points])
    y_axis = fit_axis("linear", [point.y for point in points], starts_at_zero=panel.starts_at_zero)
    label_chars = max((len(tick.label) for tick in y_axis.list_ticks()), default=1)
    left = 2 * _GAP + label_chars * _CHAR_WIDTH
    if panel.y_label:
        left += _LINE_HEIGHT
    top = _GAP + _LINE_HEIGHT
    bottom_labels = 2 if panel.x_label else 1
    frame_height = height - top - bottom_labels * _LINE_HEIGHT - _GAP
    frame = _Frame(left, top, width - left - 2 * _GAP, frame_height, x_axis, y_axis)
    elements = [_draw_text(panel.title, frame.left + frame.width / 2, _LINE_HEIGHT, "middle")]
    elements += _draw_axes(panel, frame)
    for band in panel.bands:
        high = select_drawable(band.high, panel.x_scale)
        low = select_drawable(band.low, panel.x_scale)
        corners = frame.format_points([*high, *reversed(low)])
        elements.append(f'<polygon points="{corners}" fill="{PALETTE[0]}" fill-opacity="0.2"/>')
    for line in _color_lines(panel.lines):
        elements += _draw_line(line._replace(points=select_drawable(line.points, panel.x_scale)), frame)
    for marks in panel.marks:
        elements += _draw_marks(marks._replace(points=select_drawable(marks.points, panel.x_scale)), frame)
    for index, row in enumerate(legend):
        elements += _draw_legend_row(row, frame.left, height + index * _LINE_HEIGHT)
    return elements


def _draw_axes(panel: Panel, frame: _Frame) -> list[str]:
    """The grid, the border, the ticks with their labels, and the names of the axes."""
    elements: list[str] = []
    label_y = frame.bottom + _LINE_HEIGHT - 2
    right = frame.left + frame.width
    label_end = 0.0
    for tick in frame.x_axis.list_ticks():
        x = frame.get_x(tick.value)
        elements.append(f'<path d="M{x:.1f} {frame.top}V{frame.bottom}" stroke="{GRAY}" stroke-opacity="0.3"/>')
        label_width = len(tick.label) * _CHAR_WIDTH
        middle = min(x, right + 2 * _GAP - label_width / 2)  # the last label ends inside the picture
        if middle - label_width / 2 >= label_end:  # a label that would cover the one before it is left out
            elements.append(_draw_text(tick.label, middle, label_y, "middle"))
            label_end = middle + label_width / 2 + _GAP
    for tick in frame.y_axis.list_ticks():
        y = frame.get_y(tick.value)
        elements.append(f'<path d="M{frame.left:.1f} {y:.1f}H{right:.1f}" stroke="{GRAY}" stroke-opacity="0.3"/>')
        elements.append(_draw_text(tick.label, frame.left - 4, y + 4, "end"))
    elements.append(
        f'<rect x="{frame.left:.1f}" y="{frame.top}" width="{frame.width:.1f}" height="{frame.height}" '
        f'fill="none" stroke="{GRAY}"/>'
    )
    if panel.x_label:
        elements.append(_draw_text(panel.x_label, frame.left + frame.width / 2, label_y + _LINE_HEIGHT, "middle"))
    if panel.y_label:
        middle = frame.top + frame.height / 2
        text = _draw_text(panel.y_label, 0, 0, "middle")
        elements.append(f'<g transform="translate({_LINE_HEIGHT},{middle}) rotate(-90)">{text}</g>')
    return elements


def _color_lines(lines: Sequence[Line]) -> list[Line]:
    """The lines, with colors of the palette for those without one."""
    colored: list[Line] = []
    for index, line in enumerate(lines):
        colored.append(line._replace(color=line.color or PALETTE[index % len(PALETTE)]))
    return colored


def _draw_line(line: Line, frame: _Frame) -> list[str]:
    stroke = f'stroke="{line.color}" stroke-width="1.5"{_format_dash(line)}'
    elements = [f'<polyline points="{frame.format_points(line.points)}" fill="none" {stroke}/>']
    if line.has_dots:
        for point in line.points:
            x = frame.get_x(point.x)
            y = frame.get_y(point.y)
            elements.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{line.color}"/>')
    return elements


def _draw_marks(marks: Marks, frame: _Frame) -> list[str]:
    elements: list[str] = []
    x1, y1, x2, y2, x3, y3 = _TRIANGLES[marks.direction]
    for point in marks.points:
        x = frame.get_x(point.x)
        y = frame.get_y(point.y)
        corners = f"{x + x1:.1f},{y + y1:.1f} {x + x2:.1f},{y + y2:.1f} {x + x3:.1f},{y + y3:.1f}"
        elements.append(f'<polygon points="{corners}" fill="{marks.color}"/>')
    return elements


def _lay_out_legend(panel: Panel, width: int) -> list[list[Line]]:
    """The lines that have a label, in rows that fit into the width."""
    rows: list[list[Line]] = []
    row_end = float(width)
    for line in _color_lines(panel.lines):
        if not line.label:
            continue
        entry_width = _get_entry_width(line)
        if row_end + entry_width > width - 2 * _GAP:
            rows.append([])
            row_end = 5.0 * _GAP
        rows[-1].append(line)
        row_end += entry_width
    return rows


def _draw_legend_row(lines: Sequence[Line], left: float, top: float) -> list[str]:
    elements: list[str] = []
    for line in lines:
        path = f"M{left:.1f} {top + _GAP}h{_KEY_WIDTH}"
        elements.append(f'<path d="{path}" stroke="{line.color}" stroke-width="2"{_format_dash(line)}/>')
        elements.append(_draw_text(line.label, left + _KEY_WIDTH + 4, top + _GAP + 4, "start"))
        left += _get_entry_width(line)
    return elements


def _get_entry_width(line: Line) -> float:
    return _KEY_WIDTH + 2 * _GAP + len(line.label) * _CHAR_WIDTH


def _format_dash(line: Line) -> str:
    return ' stroke-dasharray="5 3"' if line.is_dashed else ""


def _draw_text(text: str, x: float, y: float, anchor: str) -> str:
    """A text at its baseline. What is not a character of XML is replaced."""
    visible = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(visible)}</text>'
