"""Benchmarks without runs: reports of bandwidths, and a function that returns them in place of runs."""

from collections.abc import Callable
from typing import Any

from tests.builders.reports import report_of
from torchyard.benchmark.sequence import run_benchmark
from torchyard.model.benchmark import Benchmark
from torchyard.model.profile import Profile
from torchyard.model.run import Attempt, Collected, Metrics, Outcome, Report, Row, Status

RUNAI = "allreduce-runai"
Runs = Callable[[Profile, dict[str, Any]], Report]


def bandwidth_report(rows: list[Row], machines: tuple[str, ...] = ("a", "b"), **summary: Any) -> Report:
    """A run that succeeded and measured these rows on these machines."""
    collected = Collected(logs=(), metrics=Metrics(rows=tuple(rows), summary=summary), failure=None)
    outcome = Outcome(
        status=Status(state="succeeded", reason=""),
        exit_codes={},
        machines={f"node-{index}": machine for index, machine in enumerate(machines)},
    )
    return report_of(Attempt(number=1, outcome=outcome, collected=collected))


def bandwidth_rows(*busbws: float, factor: float = 1.0, start: int = 1 << 20) -> list[Row]:
    return [{"size": start << index, "algbw": busbw / factor, "busbw": busbw} for index, busbw in enumerate(busbws)]


def replay_reports(reports: dict[str | None, Report], received_overrides: list[dict[str, Any]] | None = None) -> Runs:
    """A replacement for a run: it returns its fabric's report, and appends the overrides to `received_overrides`."""

    def run_one(profile: Profile, overrides: dict[str, Any]) -> Report:
        if received_overrides is not None:
            received_overrides.append(overrides)
        return reports[profile.fabric]

    return run_one


def compare_two_fabrics() -> Benchmark:
    """EPFL's 4 nodes of 8 GPUs over RoCE and over TCP, as guide 001 measured them at 4 GB."""
    machines = ("a", "b", "c", "d")
    roce = bandwidth_report([{"size": 4 * 10**9, "algbw": 4.914, "busbw": 9.522}], machines, ranks=32)
    tcp = bandwidth_report([{"size": 4 * 10**9, "algbw": 1.944, "busbw": 3.767}], machines, ranks=32)
    return run_benchmark(RUNAI, {}, ["roce", "tcp"], replay_reports({"roce": roce, "tcp": tcp}))
