"""A benchmark inside a Prefect flow: a run of `train` for each fabric, and one page that compares them.

Like a run, a benchmark has a folder with a lock and a journal, so that a lost one is noticed and resumed.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import FlowRun, State
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.runtime import deployment as own_deployment
from prefect.runtime import flow_run

from torchyard.archive.fetch import fetch_to_read
from torchyard.archive.store import open_store
from torchyard.benchmark.curves import DEFAULT_FABRIC
from torchyard.benchmark.plot import draw_benchmark
from torchyard.benchmark.sequence import find_failure, run_benchmark, save_benchmark
from torchyard.benchmark.table import render_benchmark_page, render_benchmark_text
from torchyard.common.escaping import escape_unencodable_output, strip_control_codes
from torchyard.common.log import get_log
from torchyard.common.pool import format_deployment_name, parse_deployment_pool, read_pool
from torchyard.common.secrets import mask_text
from torchyard.model.benchmark import Benchmark
from torchyard.model.errors import BenchmarkError, NoReportError, RunInUseError, TorchyardError
from torchyard.model.profile import Profile
from torchyard.model.run import Report, RunEnd
from torchyard.run.folder import RunFolder, benchmark_folder, runs_folder
from torchyard.run.resume import CRASHED, MAX_LOSSES, choose_entry

from .flow_run.children import cancel_children, is_run_cancelled
from .flow_run.states import build_final_state, count_user_requests, has_user_request, open_bounded_client
from .flow_run.step import make_task
from .train import leave_to_owner

_POLL_INTERVAL_S = 2.0
_FLOW_NAME = "train"
_CANCELLED = RunEnd("cancelled", "cancelled through Prefect")
_GAVE_UP = RunEnd("gave-up", f"{MAX_LOSSES} processes of this benchmark were lost in a row at the same fabric")


def benchmark_profile(profile: str, fabrics: Sequence[str], overrides: Mapping[str, Any]) -> State[Any]:
    """Run the profile's deployment over each fabric and compare them; return this flow run's final state.

    A flow run that is started again attaches to the runs that it has started. After a loss it repeats none of them;
    after a user's request it repeats those that have failed. Errors of torchyard become the state's message. If another
    process owns the benchmark, this process exits and sets no state.
    """
    escape_unencodable_output()
    folder = benchmark_folder(f"{Path(profile).stem}-{str(flow_run.id)[-8:]}")
    try:
        with folder.owned():
            end = resume_benchmark(folder, lambda: _compare_fabrics(folder, profile, fabrics, overrides))
    except RunInUseError as error:
        return leave_to_owner(error)
    except TorchyardError as error:
        get_log().error("%s", error)
        end = RunEnd("failed", str(error))
    return build_final_state(end.end, mask_text(strip_control_codes(end.sentence)))


def resume_benchmark(folder: RunFolder, compare: Callable[[], RunEnd]) -> RunEnd:
    """Take a benchmark from the position in its journal to its end; `compare` measures the fabrics."""
    events = folder.events()
    entry = choose_entry(events, lambda: has_user_request(str(flow_run.id)))
    if entry == "echo":
        return RunEnd(events[-1]["end"], str(events[-1].get("sentence", "")))
    folder.record_event("start", run=str(flow_run.id), count=flow_run.run_count)
    match entry:
        case "give-up":
            end = _GAVE_UP
        case "finish":
            end = _end_cancelled(folder)
        case _:
            end = compare()
    folder.record_event("end", end=end.end, by="flow", sentence=end.sentence)
    return end


def _compare_fabrics(folder: RunFolder, profile: str, fabrics: Sequence[str], overrides: Mapping[str, Any]) -> RunEnd:
    """Measure all fabrics and publish the comparison. A user's cancel, however it is noticed, also cancels their runs.

    Errors of torchyard are logged and returned as a failed end; others are raised.
    """
    try:
        benchmark = run_benchmark(profile, overrides, fabrics, partial(_run_fabric, folder, profile))
        _publish_benchmark(benchmark, folder.name)
    except BaseException as error:  # the exception of a signal is not an Exception
        if _is_cancelled():
            return _end_cancelled(folder)
        if isinstance(error, TorchyardError):
            get_log().error("%s", error)
            return RunEnd("failed", str(error))
        raise
    failure = find_failure(benchmark)
    return RunEnd("failed", failure) if failure else RunEnd("succeeded", describe_best_bandwidths(benchmark))


def _is_cancelled() -> bool:
    """Whether a user has cancelled this benchmark; False if Prefect does not respond."""
    try:
        return is_run_cancelled(str(flow_run.id))
    except Exception as error:
        get_log().warning("cannot read from Prefect whether this benchmark was cancelled: %s", error)
        return False


def _end_cancelled(folder: RunFolder) -> RunEnd:
    """Cancel the run that is being measured. If Prefect is unreachable, the next check for lost runs cancels it."""
    folder.record_event("ending", end=_CANCELLED.end, sentence=_CANCELLED.sentence)
    try:
        with open_bounded_client() as client:
            for name in cancel_children(client, [UUID(str(flow_run.id))]):
                get_log().warning("%s is cancelled because this benchmark was cancelled", name)
    except Exception as error:
        get_log().warning(
            "cannot cancel the run that is being measured: %s (the next check for lost runs cancels it)", error
        )
    return _CANCELLED


def _run_fabric(folder: RunFolder, profile_name: str, profile: Profile, overrides: dict[str, Any]) -> Report:
    """Measure one fabric in a flow run of its own, and return its report.

    Raises NoReportError if the run has left none here or in the archive, and BenchmarkError as `measure_fabric` does.
    """
    fabric = profile.fabric or DEFAULT_FABRIC
    folder.record_event("step", name=fabric)
    measure = measure_fabric.with_options(task_run_name=f"measure {fabric}")
    parameters = {"profile": profile_name, "overrides": overrides}
    run_id, end = measure(get_child_deployment_name(profile.name), parameters)
    run_folder = RunFolder.of(profile, run_id)
    report = read_report(run_folder)
    if report is None:
        remedy = "if it ran on another machine, let the workers share TORCHYARD_RUNS or TORCHYARD_ARCHIVE"
        raise NoReportError(run_folder.name, f"{end}; there is no {run_folder.path}/report.json: {remedy}")
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


def get_child_deployment_name(profile: str) -> str:
    """The full name of the profile's deployment, in the same work pool as this benchmark's deployment."""
    own_name = own_deployment.name
    pool = parse_deployment_pool(own_name) if own_name else read_pool()
    return f"{_FLOW_NAME}/{format_deployment_name(profile, pool)}"


@make_task
def measure_fabric(deployment_name: str, parameters: dict[str, Any]) -> tuple[str, str]:
    """Start a training's flow run, or find the one that an earlier start of this benchmark made, and wait for its end.

    `deployment_name` is `FLOW/DEPLOYMENT`. Returns the flow run's id and the name of its final state; a failed run is
    returned as well. Raises BenchmarkError if the deployment does not exist or a user cancels the benchmark,
    NoReportError if the flow run was deleted, because its report cannot be found then.
    """
    child = _start_child(deployment_name, parameters)
    get_log().info("%s: flow run %s", child.name, child.id)
    return str(child.id), _wait_until_ended(child)


def _start_child(deployment: str, parameters: dict[str, Any]) -> FlowRun:
    """Start or find the run of a fabric: the first that has not failed.

    There is one run for the benchmark's first start and one for each time that a user has requested it again. The
    idempotency key makes Prefect return the existing run instead of starting a second one.
    """
    key = f"{flow_run.id}/{parameters['overrides'].get('fabric', DEFAULT_FABRIC)}"
    child: Any = None
    try:
        for request_index in range(count_user_requests(str(flow_run.id)) + 1):
            child = run_deployment(
                deployment, parameters=parameters, timeout=0, idempotency_key=f"{key}/{request_index}"
            )
            if not _has_failed(child.state):
                break
        return cast(FlowRun, child)
    except ObjectNotFound as error:
        raise BenchmarkError(
            f"there is no deployment {deployment}: `make up` or `prefect deploy --all` registers it"
        ) from error


def _has_failed(state: State[Any] | None) -> bool:
    """Whether a run has ended without success. A run whose state is named Crashed was lost and is resumed."""
    return state is not None and state.is_final() and not state.is_completed() and state.name != CRASHED


def _wait_until_ended(child: FlowRun) -> str:
    """Wait for the end of a flow run and return it, such as `Failed: no room`; an unreachable Prefect is waited for.

    Raises BenchmarkError if a user cancels the benchmark meanwhile, because without a worker no signal arrives, and
    NoReportError if the flow run was deleted.
    """
    is_unreachable = False
    while True:
        try:
            with open_bounded_client() as client:
                state = client.read_flow_run(child.id).state
            is_cancelled = is_run_cancelled(str(flow_run.id))
        except ObjectNotFound as error:
            raise NoReportError(child.name, f"flow run {child.id} was deleted") from error
        except Exception as error:
            if not is_unreachable:
                get_log().warning("cannot read the state of flow run %s from Prefect: %s (retrying)", child.id, error)
            is_unreachable = True
        else:
            is_unreachable = False
            if state and (state.is_completed() or _has_failed(state)):
                return f"{state.name}: {state.message}" if state.message else str(state.name)
            if is_cancelled:
                raise BenchmarkError("the benchmark was cancelled")
        time.sleep(_POLL_INTERVAL_S)


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
