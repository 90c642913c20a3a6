"""A benchmark inside a Prefect flow: a training for each fabric, and one page that compares them."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from torchyard.archive.fetch import fetch_to_read
from torchyard.archive.store import open_store
from torchyard.benchmark.curves import DEFAULT_FABRIC
from torchyard.benchmark.plot import draw_benchmark
from torchyard.benchmark.sequence import find_failure, run_benchmark, save_benchmark
from torchyard.benchmark.table import render_benchmark_page, render_benchmark_text
from torchyard.common.escaping import escape_unencodable_output, strip_control_codes
from torchyard.common.log import get_log
from torchyard.common.secrets import mask_text
from torchyard.model.benchmark import Benchmark
from torchyard.model.errors import NoReportError, TorchyardError, TrainingError
from torchyard.model.profile import Profile
from torchyard.model.run import Report
from torchyard.run.folder import RunFolder, runs_folder

from .train import build_error_state, train_profile


def benchmark_profile(profile: str, fabrics: Sequence[str], overrides: Mapping[str, Any]) -> State[Any]:
    """Train over each fabric with `train_profile`, and compare them; return this flow run's final state.

    A flow run that is started again repeats no training that has ended, and attaches to the one that is running; if a
    user has requested it again, it repeats those that have failed. Errors of torchyard become the state's message.
    """
    escape_unencodable_output()
    try:
        benchmark = run_benchmark(profile, overrides, fabrics, partial(_train, profile))
        _publish_benchmark(benchmark, f"{Path(profile).stem}-{str(flow_run.id)[-8:]}")
    except TorchyardError as error:
        return build_error_state(error)
    failure = find_failure(benchmark)
    if failure:
        return Failed(message=mask_text(strip_control_codes(failure)))
    return Completed(message=describe_best_bandwidths(benchmark))


def _train(profile_name: str, profile: Profile, overrides: dict[str, Any]) -> Report:
    """Train over one fabric, as a task of this flow run, and return the report; a failed training has one too.

    Raises NoReportError if the training has left none here or in the archive, and other errors of `train_profile`.
    """
    task = train_profile.with_options(task_run_name=f"train over {profile.fabric or DEFAULT_FABRIC}")
    try:
        result = task(profile_name, overrides)
    except TrainingError as error:
        result = error.result
    folder = RunFolder(runs_folder() / result.run)
    report = read_report(folder)
    if report is None:
        remedy = "if it ran on another machine, let the workers share TORCHYARD_RUNS or TORCHYARD_ARCHIVE"
        raise NoReportError(folder.name, f"{result.sentence}; there is no {folder.path}/report.json: {remedy}")
    return report


def read_report(folder: RunFolder) -> Report | None:
    """The report of a run on this machine, or on another one with the same archive; None if neither has it.

    Raises ArchiveError if the archive cannot be read.
    """
    report = folder.report()
    if report:
        return report
    store = open_store()
    fetched_folder = fetch_to_read(store, runs_folder(), folder.name) if store else None
    return RunFolder(fetched_folder).report() if fetched_folder else None


def _publish_benchmark(benchmark: Benchmark, name: str) -> None:
    """Publish the comparison in the log, on disk and as an artifact. Without Prefect only the artifact is missing."""
    folder = save_benchmark(benchmark, name)
    get_log().info("\n%s\n  %s", render_benchmark_text(benchmark), folder)
    try:
        create_markdown_artifact(
            key=f"benchmark-{benchmark.profile}",
            markdown=render_benchmark_page(benchmark, draw_benchmark(benchmark)),
            description=describe_best_bandwidths(benchmark),
        )
    except Exception as error:
        get_log().warning("cannot publish the comparison in Prefect: %s", error)


def describe_best_bandwidths(benchmark: Benchmark) -> str:
    """The largest bandwidth over each fabric: `roce: 9.522 GB/s, tcp: none`."""
    best_bandwidths: dict[str, str] = {}
    for curve in benchmark.curves:
        best = max((point.busbw for point in curve.points), default=None)
        best_bandwidths[curve.fabric] = "none" if best is None else f"{best:.4g} GB/s"
    return ", ".join(f"{fabric}: {bandwidth}" for fabric, bandwidth in best_bandwidths.items())
