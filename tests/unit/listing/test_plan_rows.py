"""Where the job of a plan runs, as text, and rows of runs with an unknown end."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.builders.listed_runs import RUNNING, build_folder
from tests.conftest import Planned, Write, load, plan_of
from torchyard.listing.plan_rows import build_row, describe_location
from torchyard.listing.run_summaries import read_run
from torchyard.model.profile import Cluster


@pytest.mark.parametrize(
    ("keys", "location"),
    [
        ({}, "login-1"),
        ({"options": {"hosts": ["gpu1", "gpu2"]}}, "gpu1, gpu2"),
        ({"nodes": 5, "options": {"hosts": ["gpu1", "gpu2", "gpu3", "gpu4", "gpu5"]}}, "gpu1, gpu2, gpu3 and 2 more"),
    ],
)
def test_location_names_the_hosts(write: Write, tmp_path: Path, keys: dict[str, Any], location: str) -> None:
    """This machine has its name, each host is named once, and many hosts are counted."""
    plan = plan_of(load(write(launcher="baremetal", **{"nodes": 2} | keys)), tmp_path)
    assert describe_location(plan, "login-1") == location


def test_location_names_the_context_and_the_namespace(planned: Planned) -> None:
    """A job in a cluster is at its context and namespace; before they are resolved there is none."""
    plan = planned()
    resolved = plan.model_copy(update={"cluster": Cluster(context="lab", namespace="team-a")})
    assert (describe_location(resolved, "login-1"), describe_location(plan, "login-1")) == ("lab/team-a", "")


def test_unknown_end_is_reported() -> None:
    """An end that this version does not have is a row that states it."""
    summary = read_run(build_folder(*RUNNING, ("end", {"end": "hibernated"})), time.time())
    row = build_row(summary, None, "a note")
    assert (row.state, row.note) == ("unreadable", "its journal has an unknown end: hibernated")
