"""The plot of a benchmark: busbw over size, a curve per fabric, and the line rate."""

from torchyard.charts.chart import Line, Panel, Point
from torchyard.charts.svg import render_svg
from torchyard.common.escaping import single_line
from torchyard.model.benchmark import Benchmark

_MAX_PANELS = 6
_PANEL_PIXELS = (480, 290)
_LINE_RATE_COLOR = "#7f7f7f"


def draw_benchmark(benchmark: Benchmark) -> str | None:
    """An SVG with one panel per collective, at most `_MAX_PANELS`; None if no curve has two sizes."""
    collectives = [collective for collective in _list_collectives(benchmark) if _has_curve(benchmark, collective)]
    if not collectives:
        return None
    width, height = _PANEL_PIXELS
    panels = [_build_panel(benchmark, collective) for collective in collectives[:_MAX_PANELS]]
    return render_svg(panels, columns=1, width=width, height=height)


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


def _build_panel(benchmark: Benchmark, collective: str) -> Panel:
    """The curves of a collective, and the line rate over the same sizes."""
    lines: list[Line] = []
    sizes: list[float] = []
    for curve in benchmark.curves:
        points = sorted(
            Point(point.size, point.busbw) for point in curve.points if point.collective == collective and point.size
        )
        if points:
            lines.append(Line(points, label=single_line(curve.fabric, 40), has_dots=True))
            sizes += [point.x for point in points]
    if benchmark.line_rate:
        rate_points = [Point(size, benchmark.line_rate) for size in (min(sizes), max(sizes))]
        lines.append(Line(rate_points, label="line rate of a node", color=_LINE_RATE_COLOR, is_dashed=True))
    return Panel(
        single_line(collective, 40),
        lines,
        x_label="size in bytes",
        y_label="busbw in GB/s",
        x_scale="log2",
        starts_at_zero=True,
    )
