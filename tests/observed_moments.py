"""The recorded moments of jobs, and what real controllers said in them."""

from typing import Any

import pytest

from tests.recorded_jobs import FILES, MOMENTS
from tests.recording import Recorded
from torchyard.launchers import registry
from torchyard.model.run import Observation, Status

EVERY = pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: f"{moment.case}-{moment.number}")


def read(case: str, observed: Observation) -> Status:
    return registry.load_launcher(case.partition("-")[0]).read_status(observed)


def pods_of(moment: Recorded) -> dict[str, Any]:
    return {name: thing for name, thing in moment.observed.states.items() if name.startswith("Pod/")}


def moments(case: str, state: str) -> list[Recorded]:
    """The moments of a case with this state."""
    found = [moment for moment in FILES[case] if moment.expected == state]
    assert found, f"{case} is never {state}"
    return found


def job_of(moment: Recorded) -> dict[str, Any]:
    return next(dict(thing) for name, thing in moment.observed.states.items() if not name.startswith("Pod"))


def true_conditions(moment: Recorded) -> set[str]:
    return {each["type"] for each in job_of(moment)["status"].get("conditions", ()) if each["status"] == "True"}


def phase_of(moment: Recorded) -> str:
    return str(job_of(moment)["status"].get("state", {}).get("phase"))


def group_of(moment: Recorded) -> dict[str, Any]:
    groups = [dict(thing) for name, thing in moment.observed.states.items() if name.startswith("PodGroup/")]
    return groups[0] if groups else {"status": {}}
