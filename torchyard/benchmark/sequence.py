"""Runs a profile over several fabrics, one after the other and on the same nodes, and compares them."""

import base64
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
from torchyard.model.profile import Profile
from torchyard.model.run import Report, Run
from torchyard.run.folder import benchmark_folder

_HOSTNAME_LABEL = "kubernetes.io/hostname"
_TRIAL_RUN = Run(id="00000000-0000-0000-0000-000000000000", attempt=1, folder="")
Overrides = Mapping[str, Any]
RunProfile = Callable[[Profile, dict[str, Any]], Report]  # with the overrides that made the profile


def run_benchmark(name: str, overrides: Overrides, fabrics: Sequence[str], run_profile: RunProfile) -> Benchmark:
    """Run the profile over each fabric, by `run_one`; a run that fails does not keep the others from running.

    After a run that was cancelled none is started.
    Without fabrics: the profile's own, then the shape's TCP. ProfileError, before anything runs, if one does not fit.
    """
    profile = load_profile(name, overrides)
    variants = [{**overrides, **({"fabric": fabric} if fabric else {})} for fabric in _choose_fabrics(profile, fabrics)]
    for variant in variants:
        _check_comparable(load_profile(name, variant))
    curves: list[Curve] = []
    for variant in variants:
        pinned = _pin_nodes(name, variant, next((curve.machines for curve in curves if curve.points), ()))
        curves.append(_measure_curve(load_profile(name, pinned), pinned, run_profile))
        if curves[-1].end == "cancelled":
            break
    return Benchmark(
        profile=profile.name,
        hardware=profile.hardware.about if profile.hardware else "",
        line_rate=profile.hardware.line_rate if profile.hardware else None,
        statistic=STATISTICS[profile.metrics],
        curves=tuple(curves),
    )


def _measure_curve(profile: Profile, overrides: dict[str, Any], run_profile: RunProfile) -> Curve:
    """The curve over one fabric; without points if its run has left no report."""
    try:
        return build_curve(profile, run_profile(profile, overrides))
    except NoReportError as error:
        return build_empty_curve(profile, error.run, error.reason)


def _choose_fabrics(profile: Profile, requested: Sequence[str]) -> list[str | None]:
    """The fabrics to compare, in this order; [None] for a profile without hardware."""
    if requested and not profile.hardware:
        raise ProfileError(profile.name, (f"fabric: {', '.join(requested)} need a hardware file, and none is named",))
    if requested or not profile.hardware:
        return list(dict.fromkeys(requested)) or [None]
    tcp_fabrics = [name for name, fabric in profile.hardware.fabrics.items() if fabric.expect.transport == "socket"]
    return list(dict.fromkeys([profile.fabric, *tcp_fabrics[:1]]))


def _check_comparable(profile: Profile) -> None:
    """ProfileError if the profile cannot be planned, or prints nothing that can be compared."""
    if profile.metrics not in STATISTICS:
        choices = ", ".join(STATISTICS)
        raise ProfileError(
            profile.name, (f"metrics: {profile.metrics} has no bandwidth to compare: it must be one of {choices}",)
        )
    registry.load_launcher(profile.launcher).plan(profile, _TRIAL_RUN)


def _pin_nodes(name: str, overrides: dict[str, Any], machines: Sequence[str]) -> dict[str, Any]:
    """The overrides with which the pods go to these nodes; unchanged if the launcher cannot be told so."""
    if not machines or registry.load_launcher(load_profile(name, overrides).launcher).PROGRAM_IS_A_FILE:
        return overrides  # a profile names its machines, and they stay the same
    pinned = {**overrides, "pod.only": {_HOSTNAME_LABEL: list(machines)}}
    try:
        _check_comparable(load_profile(name, pinned))
    except ProfileError as error:
        get_log().info("the next run may be on other nodes than the first: %s", error)
        return overrides
    return pinned


def find_failure(benchmark: Benchmark) -> str:
    """Which fabrics have no bandwidth, or an unusual one, and why; empty if every run succeeded and printed them."""
    return "; ".join(filter(None, map(_find_curve_failure, benchmark.curves)))


def _find_curve_failure(curve: Curve) -> str:
    if curve.end != "succeeded":
        return f"{curve.fabric}: the run {curve.end}: {curve.sentence}"
    if not curve.points:
        return f"{curve.fabric}: the run printed no bandwidth: see `metrics` in the profile and {curve.folder}"
    return ""


def save_benchmark(benchmark: Benchmark, name: str) -> Path:
    """Write the comparison to a folder of its own beside the runs: benchmark.json, table.txt and plot.svg."""
    folder = benchmark_folder(name).path
    make_private_folder(folder)
    write_private_text(folder / "benchmark.json", json.dumps(benchmark.model_dump(mode="json"), indent=1) + "\n")
    write_private_text(folder / "table.txt", render_benchmark_text(benchmark) + "\n")
    if plot_base64 := draw_benchmark(benchmark):
        write_private_text(folder / "plot.svg", base64.b64decode(plot_base64).decode())
    return folder
