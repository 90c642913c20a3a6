"""A Run:ai job: submitted once, never adopted from another run, and gone only after two responses without it."""

from pathlib import Path
from typing import Any

import pytest

from tests.doubles.runai_jobs import Planned, start_agents
from torchyard.host.identity import read_boot_clock
from torchyard.host.runai import update_state
from torchyard.host.runai_cli import JobResponse
from torchyard.machines.job import MachinesJob
from torchyard.model.errors import HostError
from torchyard.model.plan import Process
from torchyard.pods.template import CLI_RUN_LABEL


def test_second_submit_adopts(runai_planned: Planned) -> None:
    """A second submit finds the job and its submission time."""
    plan = runai_planned("sleep 60")
    first = start_agents(plan)
    second = start_agents(plan)
    assert (first.created, second.created) == (True, False)
    assert first.submitted_at == second.submitted_at
    MachinesJob(plan).remove()


def test_foreign_job_is_refused(runai_planned: Planned, tmp_path: Path) -> None:
    """A job with the same name but another run's label is neither adopted nor deleted."""
    plan = runai_planned("sleep 60")
    argv_file = tmp_path / "cloud" / plan.job / "given"
    start_agents(plan)
    argv_file.write_text(argv_file.read_text().replace(f"{CLI_RUN_LABEL}=sample-a1b2c3d4", f"{CLI_RUN_LABEL}=another"))
    with pytest.raises(HostError, match="in project mlo belongs to another run"):
        start_agents(plan)
    assert (MachinesJob(plan).remove(), argv_file.exists()) == ([], True)
    argv_file.write_text(argv_file.read_text().replace(f"{CLI_RUN_LABEL}=another", f"{CLI_RUN_LABEL}=sample-a1b2c3d4"))
    assert (MachinesJob(plan).remove(), argv_file.exists()) == ([], False)


def test_refused_submit_quotes_the_cli(runai_planned: Planned, tmp_path: Path) -> None:
    """If the CLI refuses a submit, the error quotes it."""
    plan = runai_planned("true")
    spec = plan.processes[0].spec
    assert spec
    argv = [*spec["argv"][:5], "--no-such-flag"]
    refused = plan.processes[0].model_copy(update={"spec": spec | {"argv": argv}})
    processes: tuple[Process, ...] = (refused, plan.processes[1])
    with pytest.raises(HostError, match="unknown flag: --no-such-flag"):
        start_agents(plan.model_copy(update={"processes": processes}))


# --- what a response of the CLI means

NO_RESPONSE = JobResponse(None, "your token is expired", {}, "")
MISSING = JobResponse(False, "not found", {}, "")
FOUND = JobResponse(True, "", {"": "Running"}, "")


@pytest.mark.parametrize(
    ("responses", "age_s", "is_gone"),
    [
        ([NO_RESPONSE, NO_RESPONSE, NO_RESPONSE], 1000.0, False),
        ([MISSING], 1000.0, False),
        ([MISSING, MISSING], 1000.0, True),
        ([MISSING, FOUND, MISSING], 1000.0, False),
        ([MISSING, MISSING], 5.0, False),
        ([FOUND, MISSING, MISSING], 5.0, True),
    ],
)
def test_job_is_absent_after_two_responses_without_it(
    responses: list[JobResponse], age_s: float, is_gone: bool
) -> None:
    """No response ends nothing, one without the job may be an error, and a new job takes a minute to appear."""
    state: dict[str, Any] = {"statuses": {}, "since": {}, "started": {}, "ended": {}}
    boot_id, seconds = read_boot_clock()
    state |= {"submitted_at": [boot_id, seconds - age_s], "missing": 0, "has_appeared": False, "is_deleted": False}
    for response in responses:
        state = update_state(state, response)
    assert state["is_deleted"] is is_gone
