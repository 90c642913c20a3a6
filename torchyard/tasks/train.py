"""One run of a profile inside a Prefect flow: the engine's runner, with each step as a task.

`train_flow_run` is the flow `train`: the flow run is the run. `train_profile` is a training in a flow of a user's own:
a run of its own, of which a flow run may have many.
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

from torchyard.common.escaping import spell_anything, strip_control_codes
from torchyard.common.log import get_log
from torchyard.common.secrets import describe_exposed_overrides, mask_text
from torchyard.loading.profile import load_profile
from torchyard.model.errors import DetachedError, HandedOverError, RunInUseError, TorchyardError, TrainingError
from torchyard.model.profile import Profile
from torchyard.model.result import RunResult
from torchyard.notify.targets import list_exposed_addresses
from torchyard.pods import seal
from torchyard.run.preview import preview_run
from torchyard.run.resume import CRASHED
from torchyard.run.runner import Runner
from torchyard.steps.descriptors import raise_file_limit
from torchyard.steps.line import StepFunctions

from .collect import collect
from .flow_run.inner_run import derive_run_id
from .flow_run.machine_hold import hold_run
from .flow_run.ownership import obtain_key, register_flow_run
from .flow_run.reporter import PrefectReporter
from .flow_run.result import build_result, read_result
from .flow_run.states import build_final_state
from .flow_run.step import make_task
from .preflight import preflight
from .rendezvous import ensure_rendezvous
from .submit import submit
from .teardown import teardown
from .wait import wait

_EXPOSED_ADDRESS = "an address with a secret is visible to everyone who may read this run in Prefect"
STEPS = StepFunctions(preflight, ensure_rendezvous, submit, wait, collect, teardown)


def train_flow_run(profile: str, overrides: dict[str, Any] | None = None, dry_run: bool = False) -> State[RunResult]:
    """Take this flow run from its current state to its end; returns its final state, which holds a success's result.

    `dry_run`: only show the plan and run preflight.
    """
    try:
        loaded_profile, run_id = _prepare_profile(profile, overrides or {}), str(flow_run.id)
        reporter = PrefectReporter(run_id, flow_run.run_count, loaded_profile.name)
        reporter.label_flow_run(loaded_profile)
        if dry_run:
            return Completed(message=preview_run(loaded_profile, run_id, reporter, STEPS))
        result = _run_to_end(loaded_profile, run_id, reporter)
        if _is_subflow():
            _propagate_stop(result, reporter)
        return build_final_state(result.end, result.sentence, result)
    except RunInUseError as error:
        return leave_to_owner(error)
    except DetachedError as error:  # its watchdog has the run resumed
        return State(type=StateType.CRASHED, name=CRASHED, message=str(error))
    except TorchyardError as error:
        get_log().error("%s", error)
        return Failed(message=mask_text(strip_control_codes(str(error))))


@make_task
def train_profile(profile: str, overrides: dict[str, Any] | None = None, name: str = "") -> RunResult:
    """Train in a flow of your own, as often as you like, one after the other or with `.submit` at the same time.

    Each training is a run of its own, with a journal, a lease, progress and a report. If the flow run is started again,
    a training that has ended is not repeated, and one that goes on is attached to; it is found by its profile,
    overrides and `name`. TrainingError if it does not succeed; a cancelled flow run ends it, and is ended by it.
    """
    loaded_profile, run_id = _prepare_profile(profile, overrides or {}), derive_run_id(profile, overrides or {}, name)
    register_flow_run(run_id, str(flow_run.id))
    reporter = PrefectReporter(str(flow_run.id), flow_run.run_count, loaded_profile.name)
    result = _run_to_end(loaded_profile, run_id, reporter)
    _propagate_stop(result, reporter)
    if result.end != "succeeded":
        raise TrainingError(result)
    return result


def _propagate_stop(result: RunResult, reporter: PrefectReporter) -> None:
    """Raise again what has stopped this run: the flow around it must not go on, not even if it catches Exception."""
    if reporter.report and result.end in ("cancelled", "stopped"):  # a run that has ended before is not stopped now
        raise reporter.stop_exception or TerminationSignal(signal.SIGTERM)


def _is_subflow() -> bool:
    """Whether another flow has called this one, in this process."""
    context = FlowRunContext.get()
    current_run = context.flow_run if context else None
    return current_run is not None and current_run.parent_task_run_id is not None and current_run.deployment_id is None


def _prepare_profile(profile: str, overrides: dict[str, Any]) -> Profile:
    """The profile, in a process that is ready to run it."""
    raise_file_limit()
    spell_anything()
    seal.key_source = obtain_key
    if message := describe_exposed_overrides(overrides):
        get_log().warning("%s", message)
    loaded_profile = load_profile(profile, overrides)
    if "notify" in overrides and loaded_profile.notify and list_exposed_addresses(loaded_profile.notify):
        get_log().warning("overrides: notify: %s; write $NAME of a variable of the worker", _EXPOSED_ADDRESS)
    return loaded_profile


def _run_to_end(profile: Profile, run_id: str, reporter: PrefectReporter) -> RunResult:
    """Take a run to its end, whatever that is; its result."""
    runner = Runner(profile, run_id, reporter, STEPS)
    hold_run(profile, run_id, runner.folder, reporter.count)
    try:
        end, sentence = runner.run()
    except HandedOverError as error:  # Prefect's engine knows why, and leaves the flow run's state alone
        raise TerminationSignal(signal.SIGTERM) from error
    report = reporter.report or runner.folder.report()  # a run that has ended already makes no report again
    if report and report.end == end:
        return build_result(report)
    try:  # of a process on another machine
        return read_result(str(flow_run.id), runner.folder.name)
    except Exception as error:
        get_log().debug("%s", error)
        return RunResult(
            profile=profile.name, run=runner.folder.name, end=end, sentence=sentence, seconds=0.0, attempts=0
        )


def leave_to_owner(error: RunInUseError) -> State[Any]:
    """End this process without touching the run: its owner will report how it ended.

    A subflow shares its process with the flow around it, which goes on.
    """
    get_log().warning("%s", error)
    if _is_subflow():
        return Failed(message=str(error))
    logging.shutdown()
    os._exit(0)
