"""A benchmark inside a Prefect flow: a run of `train` for each fabric, and one page that compares them.

It has a folder with a lock and a journal, like a run, so a lost one is noticed and resumed in the same ways.
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
from torchyard.common.escaping import spell_anything, strip_control_codes
from torchyard.common.log import get_log
from torchyard.common.pool import name_deployment, read_deployment_pool, read_pool
from torchyard.common.secrets import mask_text
from torchyard.model.benchmark import Benchmark
from torchyard.model.errors import BenchmarkError, NoReportError, RunInUseError, TorchyardError
from torchyard.model.profile import Profile
from torchyard.model.run import End, Report
from torchyard.run.folder import RunFolder, benchmark_folder, runs_folder
from torchyard.run.resume import CRASHED, MAX_LOSSES, choose_entry

from .flow_run.children import cancel_children, is_run_cancelled
from .flow_run.states import build_final_state, count_user_requests, has_user_request, open_bounded_client
from .flow_run.step import make_task
from .train import leave_to_owner

_POLL_INTERVAL_S = 2.0
_FLOW_NAME = "train"
_CANCELLED: tuple[End, str] = ("cancelled", "cancelled through Prefect")


def benchmark_profile(profile: str, fabrics: Sequence[str], overrides: Mapping[str, Any]) -> State[Any]:
    """Run the profile's deployment over each fabric and compare them; returns this flow run's final state.

    A flow run that is started again attaches to the runs that it has made. One that was lost starts none of them again;
    one that a user starts again repeats those that have failed.
    """
    spell_anything()
    folder = benchmark_folder(f"{Path(profile).stem}-{str(flow_run.id)[-8:]}")
    try:
        with folder.owned():
            end, sentence = _resume_benchmark(folder, lambda: _compare_fabrics(folder, profile, fabrics, overrides))
    except RunInUseError as error:
        return leave_to_owner(error)
    except TorchyardError as error:
        get_log().error("%s", error)
        end, sentence = "failed", str(error)
    return build_final_state(end, mask_text(strip_control_codes(sentence)))


def _resume_benchmark(folder: RunFolder, compare: Callable[[], tuple[End, str]]) -> tuple[End, str]:
    """Take a benchmark from where its journal says that it is to its end; returns that end and its sentence."""
    events = folder.events()
    entry = choose_entry(events, lambda: has_user_request(str(flow_run.id)))
    if entry == "echo":
        return events[-1]["end"], str(events[-1].get("sentence", ""))
    folder.note("start", run=str(flow_run.id), count=flow_run.run_count)
    match entry:
        case "give-up":
            end, sentence = _give_up()
        case "finish":
            end, sentence = _end_cancelled(folder)
        case _:
            end, sentence = compare()
    folder.note("end", end=end, by="flow", sentence=sentence)
    return end, sentence


def _give_up() -> tuple[End, str]:
    return "gave-up", f"{MAX_LOSSES} processes of this benchmark were lost in a row at the same fabric"


def _compare_fabrics(
    folder: RunFolder, profile: str, fabrics: Sequence[str], overrides: Mapping[str, Any]
) -> tuple[End, str]:
    """Measure all fabrics and show the comparison; a user's cancel, however it is noticed, also ends their runs."""
    try:
        benchmark = run_benchmark(profile, overrides, fabrics, partial(_run_fabric, folder, profile))
        _publish_benchmark(benchmark, folder.name)
    except BaseException as error:  # a signal is none of Exception's
        if _is_cancelled():
            return _end_cancelled(folder)
        if isinstance(error, TorchyardError):
            get_log().error("%s", error)
            return "failed", str(error)
        raise
    failure = find_failure(benchmark)
    return ("failed", failure) if failure else ("succeeded", _describe_end(benchmark))


def _is_cancelled() -> bool:
    """Whether a user has cancelled this benchmark; a cancel that cannot be seen has not arrived yet."""
    try:
        return is_run_cancelled(str(flow_run.id))
    except Exception as error:
        get_log().warning("Prefect does not say whether this benchmark was cancelled: %s", error)
        return False


def _end_cancelled(folder: RunFolder) -> tuple[End, str]:
    """Cancel the run that is being measured. If Prefect is away, the next search for lost runs does it."""
    end, sentence = _CANCELLED
    folder.note("ending", end=end, sentence=sentence)
    try:
        with open_bounded_client() as client:
            for name in cancel_children(client, [UUID(str(flow_run.id))]):
                get_log().warning("%s is cancelled with this benchmark", name)
    except Exception as error:
        get_log().warning("the run that is being measured is not cancelled yet: %s", error)
    return end, sentence


def _run_fabric(folder: RunFolder, profile_name: str, profile: Profile, overrides: dict[str, Any]) -> Report:
    """The report of the run over one fabric, which another process carries from beginning to end."""
    fabric = profile.fabric or DEFAULT_FABRIC
    folder.note("step", name=fabric)
    measure = measure_fabric.with_options(task_run_name=f"measure {fabric}")
    child, end = measure(_get_child_deployment_name(profile.name), {"profile": profile_name, "overrides": overrides})
    run_folder = RunFolder.of(profile, child)
    report = _read_report(run_folder)
    if report is None:
        hint = "on another machine than this? Then their workers must share TORCHYARD_RUNS or TORCHYARD_ARCHIVE"
        raise NoReportError(run_folder.name, f"{end}; there is no {run_folder.path}/report.json: did it run {hint}")
    return report


def _read_report(folder: RunFolder) -> Report | None:
    """The report of a run that was carried here, or elsewhere with the same archive. ArchiveError."""
    if report := folder.report():
        return report
    store = open_store()
    fetched_folder = fetch_to_read(store, runs_folder(), folder.name) if store else None
    return RunFolder(fetched_folder).report() if fetched_folder else None


def _get_child_deployment_name(profile: str) -> str:
    """The profile's own deployment of the installation that this benchmark's deployment belongs to."""
    own_name = own_deployment.name
    return f"{_FLOW_NAME}/{name_deployment(profile, read_deployment_pool(own_name) if own_name else read_pool())}"


@make_task
def measure_fabric(deployment: str, parameters: dict[str, Any]) -> tuple[str, str]:
    """Start a run of the deployment, or find the one that this flow run has started, and wait for its end.

    Returns its id, and how it ended. BenchmarkError if there is no such deployment, or a user cancels the benchmark.
    """
    child = _start_child(deployment, parameters)
    get_log().info("%s: flow run %s", child.name, child.id)
    return str(child.id), _wait_until_ended(child)


def _start_child(deployment: str, parameters: dict[str, Any]) -> FlowRun:
    """The run of a fabric: the first that has not failed, of one more than a user asked for this benchmark again."""
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
    """Whether a run has ended without success; a Crashed one comes back."""
    return state is not None and state.is_final() and not state.is_completed() and state.name != CRASHED


def _wait_until_ended(child: FlowRun) -> str:
    """Wait for the end of a flow run, and say what it was; while Prefect does not answer, it is waited for.

    BenchmarkError if a user cancels the benchmark meanwhile: without a worker no signal says so.
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
                get_log().warning("Prefect does not say how flow run %s is, and is asked again: %s", child.id, error)
            is_unreachable = True
        else:
            is_unreachable = False
            if state and (state.is_completed() or _has_failed(state)):
                return f"{state.name}: {state.message}" if state.message else str(state.name)
            if is_cancelled:
                raise BenchmarkError("the benchmark was cancelled")
        time.sleep(_POLL_INTERVAL_S)


def _publish_benchmark(benchmark: Benchmark, name: str) -> None:
    """Show the comparison in the log, on disk and as an artifact; an unreachable Prefect costs the page only."""
    folder = save_benchmark(benchmark, name)
    get_log().info("\n%s\n  %s", render_benchmark_text(benchmark), folder)
    try:
        create_markdown_artifact(
            key=f"benchmark-{benchmark.profile}",
            markdown=render_benchmark_page(benchmark, draw_benchmark(benchmark)),
            description=_describe_end(benchmark),
        )
    except Exception as error:
        get_log().warning("the comparison is not in Prefect: %s", error)


def _describe_end(benchmark: Benchmark) -> str:
    """The largest bandwidth over each fabric, in a sentence."""
    best = {curve.fabric: max((point.busbw for point in curve.points), default=None) for curve in benchmark.curves}
    return ", ".join(
        f"{fabric}: " + (f"{busbw:.4g} GB/s" if busbw is not None else "none") for fabric, busbw in best.items()
    )
