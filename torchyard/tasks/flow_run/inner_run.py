"""The runs inside a user's own flow: each has an id that stays the same when that flow run is started again."""

import json
import threading
from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid4, uuid5

from prefect.runtime import flow_run, task_run

from torchyard.backends import job_of
from torchyard.launchers.registry import make_plan
from torchyard.model.errors import TorchyardError
from torchyard.model.plan import Plan
from torchyard.model.profile import Profile
from torchyard.model.run import Run
from torchyard.run.folder import RunFolder

_LOCK = threading.Lock()  # guards _task_runs_by_training: tasks are submitted from several threads
_task_runs_by_training: dict[str, list[str]] = {}  # the task runs that requested the same training, in order


def plan(profile: Profile, name: str = "") -> Plan:
    """Return what would run. Raises ProfileError if the profile requests something that its launcher cannot do.

    The run's id is derived from this flow run, the profile's content and `name`, so the plan is the same when the
    flow run is started again, and its steps find what they have started. Two runs of one profile need two names.
    Outside of a flow each plan is a new run.
    """
    plan_key = json.dumps([name, profile.model_dump_json()])
    run_id = str(uuid5(UUID(flow_run.id), plan_key) if flow_run.id else uuid4())
    run = Run(id=run_id, attempt=1, folder=str(RunFolder.of(profile, run_id).path))
    return job_of(make_plan(profile, run)).locate()


def derive_run_id(profile: str, overrides: Mapping[str, Any], name: str) -> str:
    """Return the id of a training in this flow run, derived from the arguments.

    The same arguments a second time, in another task run, are a second run. The next process of the flow run gets the
    same ids for the same arguments in the same order. Raises TorchyardError outside of a flow, where no later process
    could find the run again.
    """
    if not flow_run.id:
        raise TorchyardError(
            "train_profile was called outside of a flow: call it in a function with @flow, or use `torchyard run`"
        )
    training_key = json.dumps([name, profile, overrides], sort_keys=True, default=str)
    with _LOCK:
        task_run_ids = _task_runs_by_training.setdefault(f"{flow_run.id}/{flow_run.run_count}/{training_key}", [])
        if task_run.id not in task_run_ids:  # Prefect may call a task again: that is the same training
            task_run_ids.append(str(task_run.id))
        return str(uuid5(UUID(flow_run.id), f"{training_key}/{task_run_ids.index(str(task_run.id))}"))
