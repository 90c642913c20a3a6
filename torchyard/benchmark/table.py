"""The comparison of a benchmark as a table, for the terminal and for Prefect's page."""

from collections.abc import Iterator

from torchyard.benchmark.wire import get_bus_factor, get_wire_share
from torchyard.common.escaping import escape_markdown, escape_paragraph, format_markdown_table, single_line
from torchyard.model.benchmark import BandwidthPoint, Benchmark, Curve

_MAX_SENTENCE_CHARS = 400
_FACTOR_TOLERANCE = 0.02  # of busbw / algbw: printed numbers are rounded
_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_MAX_UNITS = 4096  # more of a unit are no clearer than a decimal number
Cells = list[list[str]]


def format_size(size: int) -> str:
    """`32 KiB`, `4 GB`: in a binary unit of which it is a small whole number, else in a decimal one."""
    for unit, name in _UNITS:
        if size and size % unit == 0 and size // unit <= _MAX_UNITS:
            return f"{size // unit} {name}"
    for exponent, name in ((9, "GB"), (6, "MB"), (3, "kB")):
        if size >= 10**exponent:
            return f"{size / 10**exponent:g} {name}"
    return f"{size} B"


def build_tables(benchmark: Benchmark) -> dict[str, Cells]:
    """For each collective a table: its head, then a row per size, with the first fabric compared with the last."""
    names = dict.fromkeys(point.collective for curve in benchmark.curves for point in curve.points)
    return {collective: [_build_header(benchmark), *_build_rows(benchmark, collective)] for collective in names}


def _build_header(benchmark: Benchmark) -> list[str]:
    first, last = benchmark.curves[0], benchmark.curves[-1]
    header = ["size", *(f"{curve.fabric} {quantity}" for curve in benchmark.curves for quantity in ("algbw", "busbw"))]
    header += [f"{first.fabric} / {last.fabric}"] if first is not last else []
    return [*header, *(["of line rate", "least on wire"] if benchmark.line_rate else [])]


def _build_rows(benchmark: Benchmark, collective: str) -> Iterator[list[str]]:
    curves = [_index_by_size(curve, collective) for curve in benchmark.curves]
    for size in sorted({size for points in curves for size in points}):
        row_points = [points.get(size) for points in curves]
        row = [format_size(size) if size else "?"]
        row += [
            _format_number(bandwidth)
            for point in row_points
            for bandwidth in ((point.algbw, point.busbw) if point else ("", ""))
        ]
        if len(row_points) > 1:
            row.append(_format_ratio(row_points[0], row_points[-1]))
        if benchmark.line_rate:
            row += _format_percents(benchmark, row_points[0])
        yield row


def _index_by_size(curve: Curve, collective: str) -> dict[int, BandwidthPoint]:
    return {point.size: point for point in curve.points if point.collective == collective}


def _format_number(value: float | str | None) -> str:
    return f"{value:.3g}" if isinstance(value, float) else value or "-"


def _format_ratio(first: BandwidthPoint | None, other: BandwidthPoint | None) -> str:
    return f"{first.busbw / other.busbw:.2f}" if first and other and other.busbw else "-"


def _format_percents(benchmark: Benchmark, point: BandwidthPoint | None) -> list[str]:
    """busbw in percent of the line rate, and the least that must have crossed a node's wire."""
    if point is None or not benchmark.line_rate:
        return ["-", "-"]
    curve = benchmark.curves[0]
    wire_factor = get_wire_share(point.collective, curve.ranks, curve.nodes)
    factors = (1.0, wire_factor)
    return [f"{100 * point.busbw * factor / benchmark.line_rate:.0f} %" if factor else "-" for factor in factors]


def list_notes(benchmark: Benchmark) -> list[str]:
    """What a reader of the numbers must know: how each run ended, its network, and numbers that cannot be right."""
    notes = [note for curve in benchmark.curves for note in _list_curve_notes(curve)]
    machine_sets = {curve.machines for curve in benchmark.curves if curve.machines}
    if len(machine_sets) > 1:
        notes.append("the runs were not on the same nodes, so the fabrics are not all that differs")
    return [*notes, *_find_impossible_points(benchmark)]


def _list_curve_notes(curve: Curve) -> Iterator[str]:
    if curve.end != "succeeded":
        yield f"{curve.fabric}: the run {curve.end}: {curve.sentence}"
    elif not curve.points:
        yield f"{curve.fabric}: the run printed no bandwidth: see `metrics` in the profile and {curve.folder}"
    yield f"{curve.fabric}: {curve.verdict.verdict}: {curve.verdict.sentence}"
    best = max((point.busbw for point in curve.points if point.collective == "all_reduce"), default=None)
    if best is not None and curve.floor and best < curve.floor:
        yield (
            f"{curve.fabric}: the best busbw of all_reduce is {best:.4g} GB/s, below the floor of {curve.floor:g} GB/s "
            "(min_busbw, for two nodes): programs/pairwise.py finds a slow node"
        )
    for point in curve.points:
        expected = get_bus_factor(point.collective, curve.ranks)
        if point.algbw and abs(point.busbw / point.algbw / expected - 1) > _FACTOR_TOLERANCE:
            yield (
                f"{curve.fabric}: busbw / algbw is {point.busbw / point.algbw:.3f} at {format_size(point.size)}, and "
                f"{expected:.3f} for {point.collective} over {curve.ranks} ranks: the program counts differently"
            )
            return


def _find_impossible_points(benchmark: Benchmark) -> Iterator[str]:
    """Bandwidths above what the wire carries: the ranks were not where we think, or the time is wrong."""
    for curve in benchmark.curves if benchmark.line_rate else ():
        for point in curve.points:
            share = get_wire_share(point.collective, curve.ranks, curve.nodes)
            if share and benchmark.line_rate and point.busbw * share > benchmark.line_rate:
                yield (
                    f"{curve.fabric}: {point.busbw:.4g} GB/s at {format_size(point.size)} needs "
                    f"{point.busbw * share:.4g} GB/s on each node's wire, which carries {benchmark.line_rate:g}: "
                    "do not trust it"
                )
                break


def describe_benchmark(benchmark: Benchmark) -> str:
    """One line: what was measured, on what, and which statistic the numbers are."""
    first = benchmark.curves[0]
    scale = f"{first.nodes} node{'s' if first.nodes > 1 else ''}, {first.ranks} ranks"
    line_rate = f"; a node's line rate is {benchmark.line_rate:g} GB/s" if benchmark.line_rate else ""
    hardware = f"; the hardware: {benchmark.hardware}" if benchmark.hardware else ""
    return f"{benchmark.profile} on {scale}: GB/s of 10^9 bytes, {benchmark.statistic}{line_rate}{hardware}"


def render_benchmark_text(benchmark: Benchmark) -> str:
    """The comparison as the terminal shows it."""
    lines = [describe_benchmark(benchmark)]
    for collective, cells in build_tables(benchmark).items():
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines += [f"  {collective}"]
        lines += [
            "    " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells
        ]
    lines += [f"  {single_line(note, _MAX_SENTENCE_CHARS)}" for note in list_notes(benchmark)]
    return "\n".join(lines)


def render_benchmark_page(benchmark: Benchmark, plot_base64: str | None) -> str:
    """The comparison as Prefect's page shows it; `picture` is the plot as base64 SVG."""
    lines = [f"# {benchmark.profile}", escape_paragraph(describe_benchmark(benchmark), _MAX_SENTENCE_CHARS), ""]
    lines += [f"![bandwidth](data:image/svg+xml;base64,{plot_base64})", ""] if plot_base64 else []
    for collective, cells in build_tables(benchmark).items():
        lines += [f"## {escape_markdown(collective)}", "", *format_markdown_table(cells[0], cells[1:], "---:"), ""]
    lines += [f"- {escape_paragraph(note, _MAX_SENTENCE_CHARS)}" for note in list_notes(benchmark)]
    return "\n".join(lines)
