"""One run of a profile inside a Prefect flow: the engine's runner, with each step as a task.

`train_flow_run` implements the flow `train`: the flow run is the run. `train_profile` is a training in a user's own
flow: a separate run, of which a flow run may have many.
"""

import logging
import os
import signal
from typing import Any

from prefect.client.schemas.objects import State, StateType
from prefect.context import FlowRunContext
from prefect.exceptions import TerminationSignal
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from torchyard.assembly import create_runner, list_sinks
from torchyard.common.escaping import escape_unencodable_output, strip_control_codes
from torchyard.common.log import get_log
from torchyard.common.secrets import describe_exposed_overrides, mask_text
from torchyard.loading.profile import load_profile
from torchyard.model.errors import DetachedError, HandedOverError, RunInUseError, TorchyardError, TrainingError
from torchyard.model.profile import Profile
from torchyard.model.run import EndedRun, RunResult
from torchyard.notify.targets import list_exposed_addresses
from torchyard.pods import seal
from torchyard.run.folder import RunFolder
from torchyard.run.next_attempt import check_resume
from torchyard.run.preview import preview_run
from torchyard.run.result import build_result
from torchyard.run.resume import CRASHED
from torchyard.steps.descriptors import raise_file_limit

from .flow_run.control import PrefectControl
from .flow_run.inner_run import derive_run_id
from .flow_run.machine_hold import hold_run
from .flow_run.ownership import obtain_key, register_flow_run
from .flow_run.result import read_result
from .flow_run.sink import PrefectSink
from .flow_run.states import build_final_state
from .flow_run.step import make_task
from .steps import STEP_TASKS

_EXPOSED_ADDRESS = "an address with a secret is visible to everyone who may read this run in Prefect"


def train_flow_run(
    profile: str, overrides: dict[str, Any] | None = None, *, resume: str | None = None, dry_run: bool = False
) -> State[RunResult]:
    """Take this flow run from its current state to its end; return its final state, with the result of a success.

    `resume`: as the profile's key. `dry_run`: only show the plan and run preflight. Errors of torchyard become the
    state's message. If another process owns the run, this process exits and sets no state.
    """
    try:
        loaded_profile = _prepare_profile(profile, _add_resume(overrides, resume))
        run_id = str(flow_run.id)
        control = PrefectControl(run_id, flow_run.run_count)
        sink = PrefectSink(control, loaded_profile, is_flow_run=True)
        if dry_run:
            sinks = (*list_sinks(loaded_profile, run_id, control.link), sink)
            return Completed(message=preview_run(loaded_profile, run_id, control, sinks, STEP_TASKS))
        ended = _run_to_end(loaded_profile, run_id, control, sink)
        if _is_subflow():
            _propagate_stop(ended, control)
        result = _build_result(ended, loaded_profile, run_id)
        return build_final_state(result.end, result.sentence, result)
    except TorchyardError as error:
        return build_error_state(error)


@make_task
def train_profile(
    profile: str, overrides: dict[str, Any] | None = None, name: str = "", resume: str | None = None
) -> RunResult:
    """Train in your own flow, as often as you like: one training after the other, or several at once with `.submit`.

    Each training is a separate run, with a journal, a lease, progress and a report. It is identified by its profile,
    its overrides, `name` and `resume`: if the flow run is started again, a training that has ended is not repeated, and
    one that is still running is attached to. Cancelling the flow run cancels its trainings, and a cancelled training
    stops the flow.

    `resume`: the name of an earlier run, or the path of a checkpoint, from which this training continues.

    Raises TrainingError if the training does not succeed, TorchyardError outside of a flow.
    """
    changes = _add_resume(overrides, resume)
    loaded_profile = _prepare_profile(profile, changes)
    run_id = derive_run_id(profile, changes, name)
    register_flow_run(run_id, str(flow_run.id))
    control = PrefectControl(str(flow_run.id), flow_run.run_count)
    ended = _run_to_end(loaded_profile, run_id, control, PrefectSink(control, loaded_profile, is_flow_run=False))
    _propagate_stop(ended, control)
    result = _build_result(ended, loaded_profile, run_id)
    if result.end != "succeeded":
        raise TrainingError(result)
    return result


def _add_resume(overrides: dict[str, Any] | None, resume: str | None) -> dict[str, Any]:
    """The overrides, with the profile's key `resume` if it is given."""
    changes = dict(overrides or {})
    if resume:
        changes["resume"] = resume
    return changes


def _propagate_stop(ended: EndedRun, control: PrefectControl) -> None:
    """Raise again the exception that has stopped this run, so that the calling flow stops too.

    It is a BaseException: the flow must not continue even if it catches Exception. Without a report the run had ended
    in an earlier process, and this one was not stopped.
    """
    if ended.report and ended.end in ("cancelled", "stopped"):
        raise control.stop_exception or TerminationSignal(signal.SIGTERM)


def _is_subflow() -> bool:
    """Whether another flow has called this one, in this process."""
    context = FlowRunContext.get()
    current_run = context.flow_run if context else None
    if current_run is None:
        return False
    return current_run.parent_task_run_id is not None and current_run.deployment_id is None


def _prepare_profile(profile: str, overrides: dict[str, Any]) -> Profile:
    """Load the profile, and prepare this process for its run: limits, text encoding, and the key of its seals.

    Raises ProfileError. Secrets among the overrides, which Prefect shows as parameters, are logged as warnings.
    """
    raise_file_limit()
    escape_unencodable_output()
    seal.key_source = obtain_key
    message = describe_exposed_overrides(overrides)
    if message:
        get_log().warning("%s", message)
    loaded_profile = load_profile(profile, overrides)
    if "notify" in overrides and loaded_profile.notify and list_exposed_addresses(loaded_profile.notify):
        get_log().warning("overrides: notify: %s; write $NAME of a variable of the worker", _EXPOSED_ADDRESS)
    return loaded_profile


def _run_to_end(profile: Profile, run_id: str, control: PrefectControl, sink: PrefectSink) -> EndedRun:
    """Run the pipeline to its end, whatever that is.

    Raises ProfileError if a new run cannot continue what `resume` names, RunInUseError if another process owns the run,
    DetachedError if this process cannot continue, and TerminationSignal if Prefect starts another process of this run.
    """
    if control.count == 1:  # a later process finds the run's own attempts, wherever they are
        check_resume(profile)
    runner = create_runner(profile, run_id, control, STEP_TASKS, (sink,))
    hold_run(profile, run_id, runner.folder, control.count)
    try:
        return runner.run()
    except HandedOverError as error:  # for this signal Prefect's engine does not change the flow run's state
        raise TerminationSignal(signal.SIGTERM) from error


def _build_result(ended: EndedRun, profile: Profile, run_id: str) -> RunResult:
    """The result of a run, from its report: of this process, of an earlier one, or of another machine in Prefect."""
    folder = RunFolder.of(profile, run_id)
    report = ended.report or folder.report()
    if report and report.end == ended.end:
        return build_result(report)
    try:
        return read_result(str(flow_run.id), folder.name)
    except Exception as error:
        get_log().debug("%s", error)
        return RunResult(
            profile=profile.name, run=folder.name, end=ended.end, sentence=ended.sentence, seconds=0.0, attempts=0
        )


def build_error_state(error: TorchyardError) -> State[Any]:
    """The final state of a flow run that ends by an error: Failed, or Crashed if another process must resume it.

    If another process owns the run, this process exits without touching it: the owner reports how it ends. A subflow
    shares its process with the calling flow, which continues: then a Failed state is returned.
    """
    message = mask_text(strip_control_codes(str(error)))
    if isinstance(error, DetachedError):  # its watchdog resumes a run whose state is named Crashed
        return State(type=StateType.CRASHED, name=CRASHED, message=message)
    if isinstance(error, RunInUseError):
        get_log().warning("%s", error)
        if not _is_subflow():
            logging.shutdown()
            os._exit(0)  # an exception or a normal exit would make Prefect's engine set a final state
    else:
        get_log().error("%s", error)
    return Failed(message=message)
