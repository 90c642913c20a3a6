"""Plot a number over time: its values, the median, the band of usual values, and the nights outside the band."""

import io
from collections.abc import Sequence

from torchyard.common.escaping import single_line
from torchyard.trend.night import EvaluatedRecord
from torchyard.trend.regression import Band

_MAX_NIGHTS = 120  # the last ones
_SECONDS_PER_DAY = 86_400
_MARKS = {"worse": ("v", "tab:red"), "better": ("^", "tab:green")}


def draw_trend(nights: Sequence[EvaluatedRecord], name: str) -> str | None:
    """The plot of the last _MAX_NIGHTS nights as SVG; None for fewer than two nights. `name`: that of the number."""
    if len(nights) < 2:
        return None
    from matplotlib.figure import Figure

    visible = nights[-_MAX_NIGHTS:]
    days = [record.at / _SECONDS_PER_DAY for record, _ in visible]  # matplotlib's dates are days since the epoch
    figure = Figure(figsize=(8, 3), layout="constrained")
    panel = figure.add_subplot()
    panel.xaxis_date("UTC")
    panel.plot(days, [night.value for _, night in visible], marker=".", linewidth=1)
    band_days: list[float] = []
    bands: list[Band] = []
    for day, (_, night) in zip(days, visible, strict=True):
        if night.band:
            band_days.append(day)
            bands.append(night.band)
    panel.plot(band_days, [band.middle for band in bands], color="tab:gray", linestyle="--", linewidth=1)
    panel.fill_between(band_days, [band.low for band in bands], [band.high for band in bands], alpha=0.2)
    for verdict, (marker, color) in _MARKS.items():
        marked_days: list[float] = []
        marked_values: list[float] = []
        for day, (_, night) in zip(days, visible, strict=True):
            if night.verdict == verdict:
                marked_days.append(day)
                marked_values.append(night.value)
        panel.scatter(marked_days, marked_values, marker=marker, color=color, zorder=3)
    panel.set_title(single_line(name, 40), fontsize=10, parse_math=False)
    panel.tick_params(axis="x", labelsize=8, rotation=20)
    panel.grid(alpha=0.3)
    drawing = io.StringIO()
    figure.savefig(drawing, format="svg")
    return drawing.getvalue()
