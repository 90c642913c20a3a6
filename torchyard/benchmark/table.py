"""The comparison of a benchmark as a table, for the terminal and for Prefect's page."""

from collections.abc import Iterator

from torchyard.benchmark.wire import get_bus_factor, get_wire_share
from torchyard.common import page
from torchyard.common.escaping import shorten_text, single_line
from torchyard.common.page import Block, Heading, Items, Page, Paragraph, Picture, Table
from torchyard.model.benchmark import BandwidthPoint, Benchmark, Curve

_MAX_SENTENCE_CHARS = 400
_FACTOR_TOLERANCE = 0.02  # of busbw / algbw: printed numbers are rounded
_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_MAX_UNITS = 4096  # a larger number of a binary unit is shown in a decimal unit
Cells = list[list[str]]  # rows of one table, the header first


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
    """A table for each collective: its header, then a row per size, which compares the first fabric with the last."""
    tables: dict[str, Cells] = {}
    for curve in benchmark.curves:
        for point in curve.points:
            if point.collective not in tables:
                tables[point.collective] = [_build_header(benchmark), *_build_rows(benchmark, point.collective)]
    return tables


def _build_header(benchmark: Benchmark) -> list[str]:
    first = benchmark.curves[0]
    last = benchmark.curves[-1]
    header = ["size"]
    for curve in benchmark.curves:
        header += [f"{curve.fabric} algbw", f"{curve.fabric} busbw"]
    if first is not last:
        header.append(f"{first.fabric} / {last.fabric}")
    if benchmark.line_rate:
        header += ["of line rate", "least on wire"]
    return header


def _build_rows(benchmark: Benchmark, collective: str) -> Iterator[list[str]]:
    curves = [_index_by_size(curve, collective) for curve in benchmark.curves]
    sizes: set[int] = set().union(*curves)
    for size in sorted(sizes):
        row_points = [points.get(size) for points in curves]
        row = [format_size(size) if size else "?"]
        for point in row_points:
            row.append(_format_number(point.algbw if point else None))
            row.append(_format_number(point.busbw if point else None))
        if len(row_points) > 1:
            row.append(_format_ratio(row_points[0], row_points[-1]))
        if benchmark.line_rate:
            row += _format_percents(benchmark, row_points[0])
        yield row


def _index_by_size(curve: Curve, collective: str) -> dict[int, BandwidthPoint]:
    return {point.size: point for point in curve.points if point.collective == collective}


def _format_number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _format_ratio(first: BandwidthPoint | None, last: BandwidthPoint | None) -> str:
    return f"{first.busbw / last.busbw:.2f}" if first and last and last.busbw else "-"


def _format_percents(benchmark: Benchmark, point: BandwidthPoint | None) -> list[str]:
    """busbw, and the minimum traffic on a node's wire, in percent of the line rate; `-` if unknown."""
    if point is None or not benchmark.line_rate:
        return ["-", "-"]
    curve = benchmark.curves[0]
    wire_share = get_wire_share(point.collective, curve.ranks, curve.nodes)
    percents = [f"{100 * point.busbw / benchmark.line_rate:.0f} %"]
    percents.append(f"{100 * point.busbw * wire_share / benchmark.line_rate:.0f} %" if wire_share else "-")
    return percents


def list_notes(benchmark: Benchmark) -> list[str]:
    """Notes for a reader of the numbers: how each run ended, its network, and numbers that cannot be right."""
    notes: list[str] = []
    for curve in benchmark.curves:
        notes += _list_curve_notes(curve)
    machine_sets = {curve.machines for curve in benchmark.curves if curve.machines}
    if len(machine_sets) > 1:
        notes.append("the runs were not on the same nodes: the numbers may differ for other reasons than the fabric")
    notes += _list_impossible_points(benchmark)
    return notes


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
            return  # the other sizes have the same factor


def _list_impossible_points(benchmark: Benchmark) -> Iterator[str]:
    """A note for each fabric with a bandwidth above the line rate: the ranks' placement or the time is wrong."""
    if not benchmark.line_rate:
        return
    for curve in benchmark.curves:
        for point in curve.points:
            share = get_wire_share(point.collective, curve.ranks, curve.nodes)
            if share and point.busbw * share > benchmark.line_rate:
                yield (
                    f"{curve.fabric}: {point.busbw:.4g} GB/s at {format_size(point.size)} needs "
                    f"{point.busbw * share:.4g} GB/s on each node's wire, which carries {benchmark.line_rate:g}: "
                    "do not trust it"
                )
                break


def describe_benchmark(benchmark: Benchmark) -> str:
    """One line: the profile, the scale, the statistic that the numbers are, and the hardware."""
    first = benchmark.curves[0]
    noun = "nodes" if first.nodes > 1 else "node"
    scale = f"{first.nodes} {noun}, {first.ranks} ranks"
    line_rate = f"; a node's line rate is {benchmark.line_rate:g} GB/s" if benchmark.line_rate else ""
    hardware = f"; the hardware: {benchmark.hardware}" if benchmark.hardware else ""
    return f"{benchmark.profile} on {scale}: GB/s of 10^9 bytes, {benchmark.statistic}{line_rate}{hardware}"


def render_benchmark_text(benchmark: Benchmark) -> str:
    """The comparison as text for the terminal and for table.txt."""
    return page.render_text(_build_page(benchmark, None))


def render_benchmark_page(benchmark: Benchmark, plot: str | None) -> str:
    """The comparison as Markdown for Prefect's page. `plot`: as SVG; None without one."""
    return page.render_markdown(_build_page(benchmark, plot))


def _build_page(benchmark: Benchmark, plot: str | None) -> Page:
    blocks: list[Block] = [Paragraph(shorten_text(describe_benchmark(benchmark), _MAX_SENTENCE_CHARS))]
    if plot:
        blocks.append(Picture("bandwidth", plot))
    for collective, cells in build_tables(benchmark).items():
        blocks += [Heading(collective), Table(cells[0], cells[1:])]
    blocks.append(Items([single_line(note, _MAX_SENTENCE_CHARS) for note in list_notes(benchmark)]))
    return Page(benchmark.profile, blocks)
