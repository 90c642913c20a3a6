"""Jobs whose steps are tested."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Planned, Write
from tests.doubles.scripted_jobs import Make, scripted_job
from tests.processes.lone_processes import build_lone_plan, build_lone_profile
from torchyard.model.plan import CommandPlan, ManifestPlan
from torchyard.run.folder import runs_folder
from torchyard.steps.teardown import teardown


@pytest.fixture
def plan(planned: Planned) -> ManifestPlan:
    """A job of two pods."""
    return planned(nodes=2)


@pytest.fixture
def job(write: Write, tmp_path: Path) -> Make:
    """A job of one node that runs for some tenths of a second; its log is local, or copied by a script."""
    return scripted_job(write, tmp_path)


@pytest.fixture
def process(write: Write) -> Iterator[CommandPlan]:
    """The plan of one process that would sleep for a minute; nothing of it outlives the test."""
    plan = build_lone_plan(build_lone_profile(write), runs_folder() / "lone")
    yield plan
    teardown(plan)
