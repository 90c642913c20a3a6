"""Run a profile over several fabrics, one after the other and on the same nodes, and compare them."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchyard.benchmark.curves import STATISTICS, build_curve, build_empty_curve
from torchyard.benchmark.plot import draw_benchmark
from torchyard.benchmark.table import render_benchmark_text
from torchyard.common.log import get_log
from torchyard.common.private_files import make_private_folder, write_private_text
from torchyard.launchers import registry
from torchyard.loading.profile import load_profile
from torchyard.model.benchmark import Benchmark, Curve
from torchyard.model.errors import NoReportError, ProfileError
from torchyard.model.finding import Finding
from torchyard.model.profile import Profile
from torchyard.model.run import TRIAL_RUN, Report
from torchyard.run.folder import runs_folder

_HOSTNAME_LABEL = "kubernetes.io/hostname"
Overrides = Mapping[str, Any]
RunProfile = Callable[[Profile, dict[str, Any]], Report]  # gets the profile and the overrides it was loaded with


def run_benchmark(name: str, overrides: Overrides, fabrics: Sequence[str], run_profile: RunProfile) -> Benchmark:
    """Run the profile over each fabric with `run_profile`, and return the measured curves.

    By default the fabrics are the profile's own, then the first TCP fabric of its hardware file. Each run after the
    first is pinned to the nodes of the first run that has measured something. A failed run does not prevent the others;
    after a run that was stopped or cancelled no other is started.

    Raises ProfileError, before anything runs, if a fabric does not exist or the profile's metrics cannot be compared.
    """
    profile = load_profile(name, overrides)
    variants: list[dict[str, Any]] = []  # the overrides of each run
    for fabric in _choose_fabrics(profile, fabrics):
        variant = dict(overrides)
        if fabric:
            variant["fabric"] = fabric
        variants.append(variant)
    for variant in variants:
        _check_comparable(load_profile(name, variant))

    curves: list[Curve] = []
    for variant in variants:
        pinned = _pin_nodes(name, variant, _get_first_machines(curves))
        curves.append(_measure_curve(load_profile(name, pinned), pinned, run_profile))
        if curves[-1].end in ("stopped", "cancelled"):  # by Ctrl-C, or in Prefect
            break
    return Benchmark(
        profile=profile.name,
        hardware=profile.hardware.about if profile.hardware else "",
        line_rate=profile.hardware.line_rate if profile.hardware else None,
        statistic=STATISTICS[str(profile.metrics)],
        curves=tuple(curves),
    )


def _get_first_machines(curves: Sequence[Curve]) -> tuple[str, ...]:
    """The nodes of the first run that has measured something; empty if none has."""
    for curve in curves:
        if curve.points:
            return curve.machines
    return ()


def _measure_curve(profile: Profile, overrides: dict[str, Any], run_profile: RunProfile) -> Curve:
    """The curve over one fabric; without points if its run has left no report."""
    try:
        return build_curve(profile, run_profile(profile, overrides))
    except NoReportError as error:
        return build_empty_curve(profile, error.run, error.reason)


def _choose_fabrics(profile: Profile, requested: Sequence[str]) -> list[str | None]:
    """The fabrics to compare, in this order; [None] for a profile without hardware. ProfileError if it needs one."""
    if requested and not profile.hardware:
        raise ProfileError(
            profile.name,
            (Finding("fabric", f"{', '.join(requested)} requires a hardware file, and the profile names none"),),
        )
    if requested or not profile.hardware:
        return list(dict.fromkeys(requested)) or [None]
    fabrics = [profile.fabric]
    tcp_fabrics = [name for name, fabric in profile.hardware.fabrics.items() if fabric.expect.transport == "socket"]
    fabrics += tcp_fabrics[:1]
    return list(dict.fromkeys(fabrics))


def _check_comparable(profile: Profile) -> None:
    """Raise ProfileError if the profile cannot be planned, or if its metrics contain no bandwidth to compare."""
    if profile.metrics not in STATISTICS:
        choices = ", ".join(STATISTICS)
        raise ProfileError(
            profile.name,
            (Finding("metrics", f"{profile.metrics} has no bandwidth to compare: it must be one of {choices}"),),
        )
    registry.make_plan(profile, TRIAL_RUN)


def _pin_nodes(name: str, overrides: dict[str, Any], machines: Sequence[str]) -> dict[str, Any]:
    """The overrides that also pin the pods to these nodes; unchanged if there are none or the launcher cannot do it."""
    if not machines or registry.load_launcher(load_profile(name, overrides).launcher).PROGRAM_IS_A_FILE:
        return overrides  # a profile for plain machines names them, so all runs use the same ones
    pinned = dict(overrides)
    pinned["pod.only"] = {_HOSTNAME_LABEL: list(machines)}
    try:
        _check_comparable(load_profile(name, pinned))
    except ProfileError as error:
        get_log().info("cannot pin the next run to the nodes of the first one: %s", error)
        return overrides
    return pinned


def find_failure(benchmark: Benchmark) -> str | None:
    """The fabrics without a bandwidth, each with the reason; None if every run succeeded and printed bandwidths."""
    failures = [_find_curve_failure(curve) for curve in benchmark.curves]
    return "; ".join(failure for failure in failures if failure) or None


def _find_curve_failure(curve: Curve) -> str | None:
    """The reason why a curve has no bandwidth; None if it has."""
    if curve.end != "succeeded":
        return f"{curve.fabric}: the run {curve.end}: {curve.sentence}"
    if not curve.points:
        return f"{curve.fabric}: the run printed no bandwidth: see `metrics` in the profile and {curve.folder}"
    return None


def save_benchmark(benchmark: Benchmark, name: str) -> Path:
    """Write benchmark.json, table.txt and, if a curve can be drawn, plot.svg to a folder beside the runs; return it."""
    folder = runs_folder() / "benchmarks" / name  # no run has a name without an id
    make_private_folder(folder)
    write_private_text(folder / "benchmark.json", json.dumps(benchmark.model_dump(mode="json"), indent=1) + "\n")
    write_private_text(folder / "table.txt", render_benchmark_text(benchmark) + "\n")
    plot = draw_benchmark(benchmark)
    if plot:
        write_private_text(folder / "plot.svg", plot)
    return folder
