"""MachinesJob: processes are started once, adopted, and proven to be gone."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Write, load
from tests.processes.lone_processes import build_lone_plan
from tests.support.waiting import wait_until
from torchyard.host.processes import find_labelled
from torchyard.machines.job import MachinesJob
from torchyard.model.errors import HostError, RunInUseError
from torchyard.model.plan import CommandPlan, HostScript
from torchyard.model.profile import Deadlines

ALONE = {"agent": "none", "rendezvous": "env", "nodes": 2}


@pytest.fixture
def plan(write: Write, tmp_path: Path) -> Iterator[CommandPlan]:
    """A plan of two processes here, which do not outlive the test."""
    job_plan = build_lone_plan(load(write(code="import time; time.sleep(60)", **ALONE)), tmp_path / "run")
    yield job_plan
    assert MachinesJob(job_plan).remove() == []


def find_started(plan: CommandPlan) -> list[int]:
    """The processes of the plan: one that is about to run its program has no environment for a moment."""
    wait_until(lambda: len(find_labelled(plan.label)) >= len(plan.processes))
    return find_labelled(plan.label)


def test_second_submit_adopts_the_processes(plan: CommandPlan) -> None:
    """A second submit starts no process, and returns when the processes were started."""
    first = MachinesJob(plan).submit(Deadlines(), None)
    running = find_started(plan)
    second = MachinesJob(plan).submit(Deadlines(), None)
    assert (first.created, second.created, find_labelled(plan.label)) == (True, False, running)
    assert first.submitted_at == second.submitted_at


def test_removal_ends_every_process(plan: CommandPlan) -> None:
    """After the removal no process has the attempt's label, and removing again succeeds."""
    MachinesJob(plan).submit(Deadlines(), None)
    assert len(find_started(plan)) >= 2
    assert (MachinesJob(plan).remove(), find_labelled(plan.label)) == ([], [])


def test_supervisor_that_starts_nothing_is_an_error(plan: CommandPlan) -> None:
    """A supervisor that could not start its process gives an error with the process's name and the reason."""
    response = {"node-0": {"phase": "failed", "created": False, "error": "no room"}}
    script = HostScript(host="localhost", argv=(sys.executable, "-I", "-S", "-c", f"print({json.dumps(response)!r})"))
    broken = plan.model_copy(
        update={"processes": (plan.processes[0].model_copy(update={"script": script}), plan.processes[1])}
    )
    with pytest.raises(HostError, match=r"^localhost: start node-0: no room$"):
        MachinesJob(broken).submit(Deadlines(), None)


def test_unreachable_host_counts_as_leftover(write: Write, tmp_path: Path) -> None:
    """What a host has left is unknown if ssh does not reach it: the removal reports the host as a leftover."""
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho Permission denied >&2; exit 255\n")
    ssh.chmod(0o755)
    os.environ["TORCHYARD_SSH"] = str(ssh)
    plan = build_lone_plan(load(write(**ALONE, options={"hosts": ["gpu1", "gpu2"]})), tmp_path / "run")
    leftovers = MachinesJob(plan).remove()
    assert [leftover.partition(": Permission denied")[0] for leftover in leftovers] == [
        "gpu1: reach it by ssh",
        "gpu2: reach it by ssh",
    ]


def test_process_that_still_runs_is_left_over(plan: CommandPlan) -> None:
    """A supervisor that reports a running process after a cancel has left it over, whatever its `left` is."""
    response = {process.name: {"phase": "running", "left": []} for process in plan.processes}
    script = HostScript(host="localhost", argv=(sys.executable, "-I", "-S", "-c", f"print({json.dumps(response)!r})"))
    processes = tuple(process.model_copy(update={"script": script}) for process in plan.processes)
    stubborn = plan.model_copy(update={"processes": processes})
    message = "localhost: its supervisor still reports a running process"
    assert set(MachinesJob(stubborn).remove()) == {message}
    with pytest.raises(HostError, match="^localhost: stop node-0: " + message):
        MachinesJob(stubborn).stop()


def test_job_of_another_owner_is_not_ended(plan: CommandPlan) -> None:
    """If a host names another living owner of the run, no way to end its processes goes on."""
    response = {process.name: {"other_owner": "there:/b"} for process in plan.processes}
    script = HostScript(host="localhost", argv=(sys.executable, "-I", "-S", "-c", f"print({json.dumps(response)!r})"))
    processes = tuple(process.model_copy(update={"script": script}) for process in plan.processes)
    job = MachinesJob(plan.model_copy(update={"processes": processes}))
    for end in (job.stop, job.kill, job.remove, lambda: job.list_live_processes(ended_after_s=0.0)):
        with pytest.raises(RunInUseError, match="localhost is owned by there:/b"):
            end()


HOST_ANSWERS = {
    "down": "echo Permission denied >&2; exit 255",
    "fails": "echo 'OSError: [Errno 5] Input/output error' >&2; exit 1",
    "runs": """echo '{"node-0": {"phase": "running", "left": []}, "node-1": {"phase": "exited", "left": []}}'""",
    "ended": """echo '{"node-0": {"phase": "exited", "left": []}, "node-1": {"phase": "exited", "left": []}}'""",
}


@pytest.mark.parametrize(
    ("answers", "live_counts"),
    [
        (["down", "down", "down"], [2, 2, 0]),
        (["down", "fails", "down", "down"], [2, 2, 2, 0]),
        (["down", "down", "fails"], [2, 2, 2]),
        (["runs", "down", "down", "down"], [1, 2, 1, 1]),
        (["runs", "ended"], [1, 0]),
        (["runs", "down", "ended"], [1, 2, 0]),
    ],
)
def test_process_on_a_lost_host_has_ended_with_its_lease(
    write: Write, tmp_path: Path, answers: list[str], live_counts: list[int]
) -> None:
    """It counts from the last query that may have reached the host; a process that was found running has not ended."""
    ssh = tmp_path / "ssh"
    ssh.touch(0o755)
    os.environ["TORCHYARD_SSH"] = str(ssh)
    plan = build_lone_plan(load(write(**ALONE, options={"hosts": ["gpu1", "gpu2"]})), tmp_path / "run")
    now = 0.0
    job = MachinesJob(plan, lambda: now)
    actual_counts = []
    for answer in answers:
        now += 60.0
        ssh.write_text(f"#!/bin/sh\n{HOST_ANSWERS[answer]}\n")
        actual_counts.append(len(job.list_live_processes(ended_after_s=100.0)))
    assert actual_counts == live_counts
