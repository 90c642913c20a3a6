"""The recorded moments of jobs, and the statuses that real controllers set."""

from typing import Any

import pytest

from tests.inputs.recorded_jobs import FILES, MOMENTS
from tests.inputs.recording import RecordedMoment
from torchyard.diagnosis.no_progress import ClusterContext, explain_no_progress
from torchyard.launchers import registry
from torchyard.model.plan import ManifestPlan
from torchyard.model.run import Observation, Status

EACH_MOMENT = pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: f"{moment.case}-{moment.number}")


def read_status(case: str, observed: Observation) -> Status:
    return registry.load_launcher(case.partition("-")[0]).read_status(observed)


def explain_wait(plan: ManifestPlan, moment: RecordedMoment) -> str:
    """Why the recorded job waits, from its own objects; "" if nothing explains it. `plan`: of any job of its kind."""
    recorded_plan = plan.model_copy(update={"job": "job"})
    diagnosis = explain_no_progress(recorded_plan, moment.observed, ClusterContext())
    return diagnosis.sentence if diagnosis else ""


def get_pods(moment: RecordedMoment) -> dict[str, Any]:
    return {name: obj for name, obj in moment.observed.states.items() if name.startswith("Pod/")}


def find_moments(case: str, state: str) -> list[RecordedMoment]:
    """The moments of a case with this state."""
    matching = [moment for moment in FILES[case] if moment.expected == state]
    assert matching, f"no moment of {case} is {state}"
    return matching


def get_job(moment: RecordedMoment) -> dict[str, Any]:
    """The job's own object; LookupError if the moment has none."""
    for name, obj in moment.observed.states.items():
        if not name.startswith("Pod"):
            return dict(obj)
    raise LookupError(f"{moment.case}-{moment.number} has no job")


def list_true_conditions(moment: RecordedMoment) -> set[str]:
    return {
        condition["type"]
        for condition in get_job(moment)["status"].get("conditions", ())
        if condition["status"] == "True"
    }


def get_phase(moment: RecordedMoment) -> str:
    return str(get_job(moment)["status"].get("state", {}).get("phase"))


def get_pod_group(moment: RecordedMoment) -> dict[str, Any]:
    groups = [dict(obj) for name, obj in moment.observed.states.items() if name.startswith("PodGroup/")]
    return groups[0] if groups else {"status": {}}
