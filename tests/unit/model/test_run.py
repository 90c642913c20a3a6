"""The names that an attempt gets from its run."""

import json
import re

import pytest
from hypothesis import assume, given
from pydantic import ValidationError

from tests.builders.generated_plans import PROFILES, find_values
from tests.builders.generated_profiles import RUNS, build_plan
from torchyard.model.plan import ManifestPlan, Plan
from torchyard.model.profile import Profile
from torchyard.model.requirements import FreePort
from torchyard.model.run import Run, RunResult


def test_short_names_differ_for_runs_of_one_minute() -> None:
    """Time-ordered ids with the same beginning give different short names."""
    ids = ("0190c7f0-1111-7000-8000-0000a1b2c3d4", "0190c7f0-1111-7000-8000-0000a1b2c3d5")
    assert len({Run(id=run_id, attempt=1, folder="").short for run_id in ids}) == 2


def names(plan: Plan) -> set[str]:
    ids = set(re.findall(r"--rdzv_id=([\w-]+)|'rdzvId': '([\w-]+)'", str(plan)))
    if isinstance(plan, ManifestPlan):
        return {*map(str, ids), plan.folder, *find_values(plan, r"metadata\.name")}
    ports = {f"port {requirement.port}" for requirement in plan.requires if isinstance(requirement, FreePort)}
    return {*map(str, ids), plan.label, *plan.logs.values(), *ports}


@given(PROFILES, RUNS)
def test_two_attempts_share_no_name(profile: Profile, run: Run) -> None:
    """Attempts share no objects, folders, rendezvous ids or ports: the previous one may still be shutting down."""
    assume("port" not in profile.options)
    first, second = (
        names(build_plan(profile, run.model_copy(update={"attempt": attempt})))
        for attempt in (run.attempt, run.attempt + 1)
    )
    assert first & second == set()


# --- the result of a run

SHORT = {"profile": "x", "run": "x-1", "end": "succeeded", "sentence": "done", "seconds": 1.5, "attempts": 1}


def test_result_survives_json() -> None:
    """A result that was passed as JSON is the same result, with the types of its numbers."""
    result = RunResult.model_validate(SHORT | {"metrics": {"epoch": 1, "loss": 0.5, "warning": "alone"}})
    assert RunResult.model_validate(json.loads(result.model_dump_json())) == result
    assert isinstance(result.metrics["epoch"], int)


def test_result_of_a_newer_version_can_be_read() -> None:
    """A field that this version does not have is left out, and one that it requires must be present."""
    assert RunResult.model_validate(SHORT | {"colour": "red"}).run == "x-1"
    with pytest.raises(ValidationError):
        RunResult.model_validate({"run": "x-1"})
