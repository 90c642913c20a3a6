"""The plot of a benchmark: busbw over size, a curve per fabric, and the line rate."""

import base64
import io
from typing import Any

from torchyard.common.escaping import single_line
from torchyard.model.benchmark import Benchmark

_MAX_PANELS = 6
_PANEL_INCHES = (6.0, 3.6)


def draw_benchmark(benchmark: Benchmark) -> str | None:
    """An SVG in base64 with one panel per collective, at most `_MAX_PANELS`; None if no curve has two sizes."""
    collectives = [collective for collective in _list_collectives(benchmark) if _has_curve(benchmark, collective)]
    collectives = collectives[:_MAX_PANELS]
    if not collectives:
        return None
    from matplotlib.figure import Figure

    width, height = _PANEL_INCHES
    figure = Figure(figsize=(width, height * len(collectives)), layout="constrained")
    for index, collective in enumerate(collectives, 1):
        _draw_panel(figure.add_subplot(len(collectives), 1, index), benchmark, collective)
    drawing = io.StringIO()
    figure.savefig(drawing, format="svg")
    return base64.b64encode(drawing.getvalue().encode()).decode()


def _list_collectives(benchmark: Benchmark) -> list[str]:
    """The collectives in the order in which they were measured, each once."""
    collectives: list[str] = []
    for curve in benchmark.curves:
        collectives += [point.collective for point in curve.points]
    return list(dict.fromkeys(collectives))


def _has_curve(benchmark: Benchmark, collective: str) -> bool:
    """Whether any curve of the collective has two sizes, so that a line can be drawn."""
    for curve in benchmark.curves:
        sizes = {point.size for point in curve.points if point.collective == collective and point.size}
        if len(sizes) > 1:
            return True
    return False


def _draw_panel(panel: Any, benchmark: Benchmark, collective: str) -> None:
    """Draw the curves of a collective into a matplotlib panel."""
    for curve in benchmark.curves:
        points = sorted(
            (point.size, point.busbw) for point in curve.points if point.collective == collective and point.size
        )
        if points:
            panel.plot(*zip(*points, strict=True), marker=".", linewidth=1.2, label=single_line(curve.fabric, 40))
    if benchmark.line_rate:
        panel.axhline(benchmark.line_rate, color="gray", linestyle="--", linewidth=1, label="line rate of a node")
    panel.set_xscale("log", base=2)
    panel.set_xlabel("size in bytes")
    panel.set_ylabel("busbw in GB/s")
    panel.set_ylim(bottom=0)
    panel.set_title(single_line(collective, 40), fontsize=10, parse_math=False)
    panel.grid(alpha=0.3)
    panel.legend(fontsize=8)
