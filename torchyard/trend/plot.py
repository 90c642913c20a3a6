"""Plot a number over time: its values, the median, the band of usual values, and the nights outside the band."""

from collections.abc import Sequence
from typing import Literal

from torchyard.charts.chart import Band, Line, Marks, Panel, Point
from torchyard.charts.svg import render_svg
from torchyard.common.escaping import single_line
from torchyard.trend.night import EvaluatedRecord

_MAX_NIGHTS = 120  # the last ones
_PANEL_PIXELS = (640, 240)
_MEDIAN_COLOR = "#7f7f7f"
_WORSE_COLOR = "#d62728"
_BETTER_COLOR = "#2ca02c"


def draw_trend(nights: Sequence[EvaluatedRecord], name: str) -> str | None:
    """The plot of the last _MAX_NIGHTS nights as SVG; None for fewer than two nights. `name`: that of the number."""
    if len(nights) < 2:
        return None
    visible = nights[-_MAX_NIGHTS:]
    values = [Point(record.at, night.value) for record, night in visible]
    medians: list[Point] = []
    lows: list[Point] = []
    highs: list[Point] = []
    for record, night in visible:
        if night.band:
            medians.append(Point(record.at, night.band.middle))
            lows.append(Point(record.at, night.band.low))
            highs.append(Point(record.at, night.band.high))
    panel = Panel(
        single_line(name, 40),
        [Line(values, has_dots=True), Line(medians, color=_MEDIAN_COLOR, is_dashed=True)],
        bands=[Band(lows, highs)] if medians else [],
        marks=[
            Marks(_list_nights(visible, "worse"), _WORSE_COLOR, "down"),
            Marks(_list_nights(visible, "better"), _BETTER_COLOR, "up"),
        ],
        x_scale="time",
    )
    width, height = _PANEL_PIXELS
    return render_svg([panel], columns=1, width=width, height=height)


def _list_nights(nights: Sequence[EvaluatedRecord], verdict: Literal["worse", "better"]) -> list[Point]:
    """The points of the nights with this verdict."""
    return [Point(record.at, night.value) for record, night in nights if night.verdict == verdict]
