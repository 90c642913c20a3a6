"""The Prefect task that checks a plan."""

from pathlib import Path

import pytest

from torchyard.model.errors import PreflightError
from torchyard.model.plan import CommandPlan
from torchyard.tasks.preflight import preflight


def test_task_reports_every_check(plan: CommandPlan, tmp_path: Path) -> None:
    """The task `preflight` returns one check per requirement, and raises if one of them fails."""
    assert (preflight.name, len(preflight.fn(plan))) == ("preflight", len(plan.requires))
    (tmp_path / "sample.py").unlink()
    with pytest.raises(PreflightError, match="there is no such file"):
        preflight.fn(plan)
