"""A benchmark inside a Prefect flow: a run of `train` for each fabric, and one page that compares them."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast
from uuid import UUID

from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import FlowRun, State
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run
from prefect.states import Cancelling, Completed, Failed

from torchyard.benchmark.curves import DEFAULT_FABRIC
from torchyard.benchmark.plot import draw_benchmark
from torchyard.benchmark.sequence import find_failure, run_benchmark, save_benchmark
from torchyard.benchmark.table import render_benchmark_page, render_benchmark_text
from torchyard.common.escaping import spell_anything, strip_control_codes
from torchyard.common.log import get_log
from torchyard.common.secrets import mask_text
from torchyard.model.benchmark import Benchmark
from torchyard.model.errors import BenchmarkError, TorchyardError
from torchyard.model.profile import Profile
from torchyard.model.run import Report
from torchyard.run.folder import RunFolder
from torchyard.run.resume import CRASHED

from .flow_run.states import open_bounded_client
from .flow_run.step import make_task

_POLL_INTERVAL_S = 2.0
_FLOW_NAME = "train"


def benchmark_profile(profile: str, fabrics: Sequence[str], overrides: Mapping[str, Any]) -> State[Any]:
    """Run the profile's deployment over each fabric and compare them; returns this flow run's final state.

    A flow run that is started again attaches to the runs that it has made, and makes none twice.
    """
    spell_anything()
    try:
        found = run_benchmark(profile, overrides, fabrics, partial(_run_fabric, profile))
        _show_benchmark(found)
    except TorchyardError as error:
        get_log().error("%s", error)
        return Failed(message=mask_text(strip_control_codes(str(error))))
    failure = find_failure(found)
    return Failed(message=failure) if failure else Completed(message=_describe_end(found))


def _run_fabric(name: str, profile: Profile, overrides: dict[str, Any]) -> Report:
    """The report of the run over one fabric, which another process carries from beginning to end."""
    measure = measure_fabric.with_options(task_run_name=f"measure {profile.fabric or DEFAULT_FABRIC}")
    child = measure(f"{_FLOW_NAME}/{profile.name}", {"profile": name, "overrides": overrides})
    report = RunFolder.of(profile, child).report()
    if report is None:
        path = RunFolder.of(profile, child).path
        raise BenchmarkError(
            f"the run {path.name} has ended, and {path}/report.json does not exist: the worker of train and that of "
            "benchmark must share TORCHYARD_RUNS"
        )
    return report


@make_task
def measure_fabric(deployment: str, parameters: dict[str, Any]) -> str:
    """Start a run of the deployment, or find the one that this flow run has started, and wait for its end.

    Returns its id. BenchmarkError if there is no such deployment.
    """
    child = _start_child(deployment, parameters)
    get_log().info("%s: flow run %s", child.name, child.id)
    try:
        _wait_until_ended(child.id)
    except BaseException:
        _cancel_with_parent(child.id)
        raise
    return str(child.id)


def _start_child(deployment: str, parameters: dict[str, Any]) -> FlowRun:
    """The run of a fabric: the first that has not failed, of as many as the benchmark has been started."""
    key = f"{flow_run.id}/{parameters['overrides'].get('fabric', DEFAULT_FABRIC)}"
    child: Any = None
    try:
        for start in range(flow_run.run_count):
            child = run_deployment(deployment, parameters=parameters, timeout=0, idempotency_key=f"{key}/{start}")
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


def _wait_until_ended(child: UUID) -> None:
    """Wait for the end of a flow run; while Prefect does not answer, it is waited for."""
    is_silent = False
    while True:
        try:
            with open_bounded_client() as client:
                state = client.read_flow_run(child).state
        except ObjectNotFound as error:
            raise BenchmarkError(f"flow run {child} was deleted") from error
        except Exception as error:
            if not is_silent:
                get_log().warning("Prefect does not say how flow run %s is, and is asked again: %s", child, error)
            is_silent = True
        else:
            is_silent = False
            if state and (state.is_completed() or _has_failed(state)):
                return
        time.sleep(_POLL_INTERVAL_S)


def _cancel_with_parent(child: UUID) -> None:
    """Cancel the run of a fabric if a user has cancelled the benchmark; a lost benchmark leaves its runs alone."""
    try:
        with open_bounded_client() as client:
            mine = client.read_flow_run(UUID(str(flow_run.id))).state
            if mine and (mine.is_cancelling() or mine.is_cancelled()):
                client.set_flow_run_state(child, Cancelling(message="its benchmark was cancelled"))
    except Exception as error:
        get_log().warning("flow run %s was not cancelled: %s", child, error)


def _show_benchmark(found: Benchmark) -> None:
    """Show the comparison in the log, on disk and as an artifact; an unreachable Prefect costs the page only."""
    folder = save_benchmark(found, f"{found.profile}-{str(flow_run.id)[-8:]}")
    get_log().info("\n%s\n  %s", render_benchmark_text(found), folder)
    try:
        create_markdown_artifact(
            key=f"benchmark-{found.profile}",
            markdown=render_benchmark_page(found, draw_benchmark(found)),
            description=_describe_end(found),
        )
    except Exception as error:
        get_log().warning("the comparison is not in Prefect: %s", error)


def _describe_end(found: Benchmark) -> str:
    """The largest bandwidth over each fabric, in a sentence."""
    best = {curve.fabric: max((point.busbw for point in curve.points), default=0.0) for curve in found.curves}
    return ", ".join(f"{name}: {busbw:.4g} GB/s" for name, busbw in best.items())
