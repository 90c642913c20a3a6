"""Runs whose folders a list reads, and rows of such a list."""

from pathlib import Path
from typing import Any

from torchyard.listing.listed_run import ListedRun
from torchyard.model.plan import Plan
from torchyard.model.profile import Deadlines
from torchyard.run.folder import AttemptPlan, RunFolder, runs_folder

START = {
    "entry": "fresh",
    "profile": "mine",
    "launcher": "volcano",
    "gpus": 16,
    "host": "login-1",
    "user": "alice",
    "processes": 8,
}
SUBMIT = (("start", START), ("step", {"name": "submit"}), ("step-end", {"name": "submit"}), ("step", {"name": "wait"}))
RUNNING = (*SUBMIT, ("running", {"attempt": 1, "waited_s": 12.5}))
TORN_DOWN = (*RUNNING, ("step", {"name": "teardown"}), ("step-end", {"name": "teardown"}))
FAILED = (*TORN_DOWN, ("end", {"end": "failed", "sentence": "it broke"}))
MOVED = (*RUNNING, ("end", {"end": "moved", "sentence": "another machine has taken it over"}))


def build_folder(
    *events: tuple[str, dict[str, Any]], name: str = "mine-a1b2c3d4", plan: Plan | None = None, runs: Path | None = None
) -> RunFolder:
    """A run whose journal has these events, and that has one attempt if there is a plan. `runs`: of another machine."""
    folder = RunFolder((runs or runs_folder()) / name)
    folder.path.mkdir(parents=True, exist_ok=True)
    for event, fields in events:
        folder.record_event(event, **fields)
    if plan:
        folder.save_attempt_plan(1, AttemptPlan(plan=plan, deadlines=Deadlines()))
    return folder


def build_row(**fields: Any) -> ListedRun:
    """A row of a run of alice that started 100 s after the epoch."""
    row = ListedRun(
        name="mine-a1b2c3d4",
        state="running",
        launcher="volcano",
        location="lab/team-a",
        nodes=2,
        processes=8,
        started_at=100.0,
        user="alice",
    )
    return row.model_copy(update=fields)
