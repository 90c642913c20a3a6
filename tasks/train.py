"""One run of a profile inside a Prefect flow: the engine's runner, with each step as a task."""

import logging
import os
from typing import Any

from prefect.client.schemas.objects import State, StateType
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from torchyard.common.escaping import spell_anything, strip_control_codes
from torchyard.common.log import get_log
from torchyard.common.secrets import describe_exposed_overrides, mask_text
from torchyard.loading.profile import load_profile
from torchyard.model.errors import LeftError, RunInUseError, TorchyardError
from torchyard.pods import seal
from torchyard.run.preview import preview_run
from torchyard.run.resume import CRASHED
from torchyard.run.runner import Runner
from torchyard.steps.descriptors import raise_file_limit
from torchyard.steps.line import StepFunctions

from .collect import collect
from .flow_run.ownership import obtain_key
from .flow_run.reporter import PrefectReporter
from .flow_run.states import final_state
from .preflight import preflight
from .rendezvous import ensure_rendezvous
from .submit import submit
from .teardown import teardown
from .wait import wait

STEPS = StepFunctions(preflight, ensure_rendezvous, submit, wait, collect, teardown)


def train_profile(profile: str, overrides: dict[str, Any] | None = None, dry_run: bool = False) -> State[Any]:
    """Take this flow run from its current state to its end; returns its final state.

    `dry_run`: only show the plan and run preflight.
    """
    raise_file_limit()
    spell_anything()
    seal.key_source = obtain_key
    if said := describe_exposed_overrides(overrides or {}):
        get_log().warning("%s", said)
    try:
        chosen, run_id = load_profile(profile, overrides), str(flow_run.id)
        reporter = PrefectReporter(run_id, flow_run.run_count)
        reporter.show_profile(chosen)
        if dry_run:
            return Completed(message=preview_run(chosen, run_id, reporter, STEPS))
        return final_state(*Runner(chosen, run_id, reporter, STEPS).run())
    except RunInUseError as error:
        return leave_to_owner(error)
    except LeftError as error:  # its watchdog has the run resumed
        return State(type=StateType.CRASHED, name=CRASHED, message=str(error))
    except TorchyardError as error:
        get_log().error("%s", error)
        return Failed(message=mask_text(strip_control_codes(str(error))))


def leave_to_owner(error: RunInUseError) -> State[Any]:
    """End this process without touching the run: its owner will report how it ended."""
    get_log().warning("%s", error)
    logging.shutdown()
    os._exit(0)
