"""Preflight on this machine: every check of a plan, and all failures in one error."""

from pathlib import Path

import pytest

from tests.conftest import Write, load, plan_of
from torchyard.model.errors import PreflightError
from torchyard.steps.preflight import preflight


def test_good_plan_passes(write: Write, tmp_path: Path) -> None:
    """A profile for this machine passes every check, one per requirement."""
    plan = plan_of(load(write(rendezvous="etcd-v2")), tmp_path / "run")
    checks = preflight(plan)
    assert len(checks) == len(plan.requires)


def test_all_failures_are_in_one_error(write: Write, tmp_path: Path) -> None:
    """A missing program and a missing interpreter are reported in one error, with remedies."""
    profile = load(write(options={"python": "/no/python"}))
    Path(str(profile.program)).unlink()  # after the profile was loaded
    with pytest.raises(PreflightError) as error:
        preflight(plan_of(profile, tmp_path))
    assert "2 of 5 checks failed" in str(error.value)
    assert "there is no such file; correct the profile's `program`" in str(error.value)
    assert "start /no/python: No such file or directory; choose another interpreter" in str(error.value)
