"""A job that the tasks of a run can start, watch and remove within a second."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Write, load
from tests.processes.lone_processes import build_lone_plan
from torchyard.model.plan import CommandPlan
from torchyard.steps.teardown import teardown


@pytest.fixture
def plan(write: Write, tmp_path: Path) -> Iterator[CommandPlan]:
    """A plan of one process here that prints a line; it does not outlive the test."""
    plan = build_lone_plan(load(write(agent="none", rendezvous="env")), tmp_path / "run")
    yield plan
    assert teardown(plan) == ()
