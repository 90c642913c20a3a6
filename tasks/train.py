"""One run of a profile inside a Prefect flow: the engine's line, with each step a task of its own."""

import logging
import os
from typing import Any

from prefect.client.schemas.objects import State, StateType
from prefect.runtime import flow_run
from prefect.states import Failed

from tasks.collect import collect
from tasks.flow_runs import obtain_key
from tasks.flow_states import final_state
from tasks.preflight import preflight
from tasks.rendezvous import ensure_rendezvous
from tasks.reporter import PrefectReporter
from tasks.submit import submit
from tasks.teardown import teardown
from tasks.wait import wait
from torchyard.common.escaping import spell_anything, strip_control_codes
from torchyard.common.log import get_log
from torchyard.common.secrets import describe_exposed_overrides, mask_text
from torchyard.loading.profile import load_profile
from torchyard.model.errors import LeftError, RunInUseError, TorchyardError
from torchyard.pods import seal
from torchyard.run.resume import CRASHED
from torchyard.run.runner import Runner
from torchyard.steps.descriptors import raise_file_limit
from torchyard.steps.line import StepFunctions

STEPS = StepFunctions(preflight, ensure_rendezvous, submit, wait, collect, teardown)


def train_profile(profile: str, overrides: dict[str, Any] | None = None) -> State[Any]:
    """Carry this flow run from wherever it is to its end, and give its final state."""
    raise_file_limit()
    spell_anything()
    seal.key_source = obtain_key
    if said := describe_exposed_overrides(overrides or {}):
        get_log().warning("%s", said)
    try:
        chosen, run_id = load_profile(profile, overrides), str(flow_run.id)
        return final_state(*Runner(chosen, run_id, PrefectReporter(run_id, flow_run.run_count), STEPS).run())
    except RunInUseError as error:
        return _leave_to_owner(error)
    except LeftError as error:  # its watchdog sees to it that the run comes back
        return State(type=StateType.CRASHED, name=CRASHED, message=str(error))
    except TorchyardError as error:
        get_log().error("%s", error)
        return Failed(message=mask_text(strip_control_codes(str(error))))


def _leave_to_owner(error: RunInUseError) -> State[Any]:
    """End this process without touching the run: its owner will say how it ended."""
    get_log().warning("%s", error)
    logging.shutdown()
    os._exit(0)
