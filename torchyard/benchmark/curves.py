"""Convert the report of a benchmark's run to a curve: bandwidth over size."""

import math
from collections.abc import Iterator

from torchyard.diagnosis.nccl.fabric import evaluate_fabric
from torchyard.model.benchmark import BandwidthPoint, Curve
from torchyard.model.fabric import FabricReading
from torchyard.model.profile import Profile
from torchyard.model.resolved import resolve
from torchyard.model.run import Metrics, Report, Row

DEFAULT_FABRIC = "default"  # the name of a curve whose profile names no fabric
# The statistic that each format prints for the trials of one size.
STATISTICS: dict[str, str] = {
    "json-lines": "median of the trials",
    "nccl-tests": "mean of the iterations, out of place",
    "allreduce-bench": "as the program prints it: the mean of the trials",
}
_COLLECTIVES = {"alltoall": "all_to_all", "": "all_reduce"}


def build_curve(profile: Profile, report: Report) -> Curve:
    """The curve of one run; without points if it printed no bandwidth."""
    expect = resolve(profile).expect
    metrics = report.collected.metrics if report.collected else Metrics()
    machines = set(report.attempts[-1].outcome.machines.values()) if report.attempts else set()
    nodes = len(machines) or profile.nodes.max
    verdict = report.collected.fabric if report.collected else None
    return Curve(
        fabric=profile.fabric or DEFAULT_FABRIC,
        run=report.run,
        end=report.end,
        sentence=report.sentence,
        ranks=_parse_rank_count(metrics.summary) or profile.world_size,
        nodes=nodes,
        machines=tuple(sorted(machines)),
        points=tuple(_parse_points(metrics)),
        floor=expect.min_busbw if expect else None,
        verdict=verdict or evaluate_fabric(FabricReading(), expect, nodes),
        folder=report.folder,
    )


def build_empty_curve(profile: Profile, run: str, sentence: str) -> Curve:
    """The curve of a run that has left no report."""
    expect = resolve(profile).expect
    return Curve(
        fabric=profile.fabric or DEFAULT_FABRIC,
        run=run,
        end="failed",
        sentence=sentence,
        ranks=profile.world_size,
        nodes=profile.nodes.max,
        verdict=evaluate_fabric(FabricReading(), expect, profile.nodes.max),
    )


def _parse_rank_count(summary: Row) -> int:
    """The number of ranks that the program printed; 0 if it printed none."""
    rank_count = summary.get("world_size", summary.get("ranks"))
    return rank_count if isinstance(rank_count, int) and rank_count > 0 else 0


def _parse_points(metrics: Metrics) -> Iterator[BandwidthPoint]:
    """A point for each row with a size; without such rows, one point from the summary and the last row.

    Rows without a valid busbw are left out.
    """
    default_collective = str(metrics.summary.get("collective") or metrics.summary.get("op") or "")
    sized_rows = [row for row in metrics.rows if "size" in row]
    summary_row: Row = dict(metrics.rows[-1]) if metrics.rows else {}
    summary_row.update(metrics.summary)
    for row in sized_rows or [summary_row]:
        busbw = _parse_number(row.get("busbw"))
        if busbw is None:
            continue
        size = int(_parse_number(row.get("size")) or 0)
        algbw = _parse_number(row.get("algbw"))
        collective = str(row.get("collective") or default_collective)
        collective = _COLLECTIVES.get(collective, collective)
        yield BandwidthPoint(collective=collective, size=size, algbw=algbw, busbw=busbw)


def _parse_number(value: object) -> float | None:
    """The value as a float if it is a finite number of 0 or more; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None
