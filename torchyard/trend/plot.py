"""Plots a number over time: its values, the median and the band of what was usual, and the nights outside it."""

import io
from collections.abc import Sequence

from torchyard.common.escaping import single_line
from torchyard.trend.records import Record
from torchyard.trend.regression import JudgedValue

_MAX_NIGHTS = 120  # the last ones
_SECONDS_PER_DAY = 86_400
_MARKS = {"worse": ("v", "tab:red"), "better": ("^", "tab:green")}


def draw_trend(nights: Sequence[tuple[Record, JudgedValue]], name: str) -> str | None:
    """The plot as SVG; None for fewer than two nights."""
    if len(nights) < 2:
        return None
    from matplotlib.figure import Figure

    visible = nights[-_MAX_NIGHTS:]
    days = [record.at / _SECONDS_PER_DAY for record, _ in visible]  # matplotlib's dates are days since the epoch
    figure = Figure(figsize=(8, 3), layout="constrained")
    panel = figure.add_subplot()
    panel.xaxis_date("UTC")
    panel.plot(days, [night.value for _, night in visible], marker=".", linewidth=1)
    banded = [(day, night.band) for day, (_, night) in zip(days, visible, strict=True) if night.band]
    band_days = [day for day, _ in banded]
    panel.plot(band_days, [band.middle for _, band in banded], color="tab:gray", linestyle="--", linewidth=1)
    panel.fill_between(band_days, [band.low for _, band in banded], [band.high for _, band in banded], alpha=0.2)
    for verdict, (marker, color) in _MARKS.items():
        marked = [(day, night.value) for day, (_, night) in zip(days, visible, strict=True) if night.verdict == verdict]
        panel.scatter([day for day, _ in marked], [value for _, value in marked], marker=marker, color=color, zorder=3)
    panel.set_title(single_line(name, 40), fontsize=10, parse_math=False)
    panel.tick_params(axis="x", labelsize=8, rotation=20)
    panel.grid(alpha=0.3)
    drawing = io.StringIO()
    figure.savefig(drawing, format="svg")
    return drawing.getvalue()
