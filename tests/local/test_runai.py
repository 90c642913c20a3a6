"""Run:ai through a fake of both generations of its CLI (tests/programs/runai.py), with pods that are real processes."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.client.schemas.objects import State

from flows.sweep import sweep
from flows.train import train
from tests.conftest import Write
from tests.doubles.runai_jobs import Cli, Planned, build_profile_keys, start_agents
from tests.processes.flow_processes import FlowRunProcesses
from torchyard.common.project_root import ROOT
from torchyard.diagnosis.no_progress import describe_progress
from torchyard.launchers import runai
from torchyard.machines.job import MachinesJob
from torchyard.machines.job_watch import ProcessWatch
from torchyard.model.plan import CommandPlan
from torchyard.model.run import ENDED_STATES, Observation, Report, Status
from torchyard.run.folder import list_run_folders

# --- whole runs


def run_flow(path: Path, **keys: Any) -> tuple[State[Any], Report]:
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | keys))
    state = train(str(path), return_state=True)
    (folder,) = list_run_folders()
    report = folder.report()
    assert report
    return state, report


@pytest.mark.usefixtures("api")
@pytest.mark.parametrize("cli_forms", [("v1", "joined", "pods"), ("v2", "exec", "processes")])
def test_pi_is_computed(cli: Cli, write: Write, cli_forms: tuple[str, str, str]) -> None:
    """The first app of guide 001 runs on two pods with two processes each, under both generations of the CLI."""
    keys = {"processes": 2, "args": ["--trials=2", "--intervals=9999"], "metrics": "json-lines"}
    state, report = run_flow(
        write("pi", **build_profile_keys(cli(*cli_forms), **keys)), program=str(ROOT / "programs" / "pi.py")
    )
    assert (str(state.name), report.leftovers) == ("Completed", ())
    assert report.collected
    assert report.collected.metrics.summary["world_size"] == 4
    assert [read_log.lost for read_log in report.collected.logs] == ["", ""]


FAILS = """
import os, time
if os.environ["RANK"] == "1":
    raise ValueError("bad learning rate")
time.sleep(60)
"""


@pytest.mark.usefixtures("api")
def test_failed_pod_has_its_cause_in_the_log(cli: Cli, write: Write, tmp_path: Path) -> None:
    """A pod that fails ends the run immediately, with the exception from the log of that pod."""
    path = write("fails", code=FAILS, **build_profile_keys(cli(), agent="none", rendezvous="env"))
    state, report = run_flow(path, program=str(tmp_path / "fails.py"))
    assert state.is_failed()
    assert "bad learning rate" in report.sentence
    assert not list((tmp_path / "cloud").iterdir())


@pytest.mark.usefixtures("api")
def test_sweep_deletes_the_job_of_a_killed_launcher(cli: Cli, write: Write, tmp_path: Path) -> None:
    """A job whose launcher was killed keeps running in Run:ai until a sweep deletes it, after fetching its log."""
    keys = {"agent": "none", "rendezvous": "env", "program": "/bin/sh", "args": ["-c", "echo up; sleep 60"]}
    run = FlowRunProcesses(write(**build_profile_keys(cli(), **keys)))
    run.kill_when(lambda: len([path for path in tmp_path.glob("runs/*/attempt-1/*/log") if path.stat().st_size]) == 2)
    assert list((tmp_path / "cloud").iterdir())
    sweep(runs=[run.folder.name], return_state=True)
    assert (run.read_state().name, list((tmp_path / "cloud").iterdir())) == ("Swept", [])
    assert (run.folder.attempt(1) / "node-1" / "log").read_text().endswith("| up\n")


# --- start, watch, delete

TIMEOUT_S = 15.0


def wait_for_status(plan: CommandPlan, is_reached: Callable[[Status], bool]) -> Status:
    """Poll the job until a condition on its status holds; return that status. Fails after TIMEOUT_S.

    The reason of the status includes why the job waits, as a user reads it.
    """
    with MachinesJob(plan).watch(list) as watch:
        deadline = time.monotonic() + TIMEOUT_S
        status = Status(state="pending", reason="")
        while not is_reached(status):
            assert time.monotonic() < deadline, status
            watch.poll(timeout_s=0.2)
            status = runai.read_status(Observation(watch.states, frozenset(), time.time()))
            reason = describe_progress(status.reason, watch.diagnose())
            status = status.model_copy(update={"reason": reason})
        if status.state in ENDED_STATES:
            watch.drain_logs(idle_timeout_s=5.0)
        return status


def has_ended(status: Status) -> bool:
    return status.state in ENDED_STATES


def read_log(plan: CommandPlan, node: int) -> list[str]:
    """The lines of a node's log without their timestamps; empty while there is no log."""
    path = Path(plan.processes[node].log)
    return [line.partition(" | ")[2] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("generation", ["v1", "v2"])
def test_logs_of_an_ended_job_are_complete(runai_planned: Planned, generation: str) -> None:
    """Each node's log has every line of its pod, including the last one."""
    plan = runai_planned("echo I am $RANK of $WORLD_SIZE; echo done", generation)
    start_agents(plan)
    assert wait_for_status(plan, has_ended).state == "succeeded"
    MachinesJob(plan).remove()
    assert (read_log(plan, 0), read_log(plan, 1)) == (["I am 0 of 2", "done"], ["I am 1 of 2", "done"])


def test_cancel_deletes_the_job_and_keeps_the_log(runai_planned: Planned, tmp_path: Path) -> None:
    """A cancel deletes a running job with its pods and keeps its output; a second cancel succeeds."""
    plan = runai_planned("echo up; sleep 60")
    start_agents(plan)
    wait_for_status(plan, lambda status: status.state == "running")
    with MachinesJob(plan).watch(list) as watch:
        assert MachinesJob(plan).remove() == []
        watch.drain_logs(idle_timeout_s=5.0)
        assert watch.lost_logs() == {}
    assert (read_log(plan, 0), read_log(plan, 1), MachinesJob(plan).remove()) == (["up"], ["up"], [])
    assert not list((tmp_path / "cloud").iterdir())


def test_deletion_by_another_user_is_reported(runai_planned: Planned, tmp_path: Path) -> None:
    """A job that another user deletes ends with that reason."""
    plan = runai_planned("sleep 60")
    start_agents(plan)
    wait_for_status(plan, lambda status: status.state == "running")
    argv = ("training", "pytorch", "delete", plan.job, "--project", "mlo")
    subprocess.run([tmp_path / "runai", *argv], check=True)
    assert wait_for_status(plan, has_ended).reason == "the job was deleted from Run:ai by another user"


def test_expired_login_does_not_end_the_job(runai_planned: Planned, tmp_path: Path) -> None:
    """While the login is expired the job keeps its last state, and the reason quotes the CLI."""
    plan = runai_planned("sleep 60")
    broken = tmp_path / "cloud" / "broken"
    start_agents(plan)
    wait_for_status(plan, lambda status: status.state == "running")
    broken.write_text("your token is expired, please log in")
    status = wait_for_status(plan, lambda status: "runai does not answer" in status.reason)
    assert (status.state, "your token is expired" in status.reason) == ("running", True)
    assert "your token is expired" in MachinesJob(plan).remove()[0]
    broken.unlink()
    wait_for_status(plan, lambda status: status.reason == "2 of 2 pods run")
    assert MachinesJob(plan).remove() == []


def test_preemption_is_worth_another_attempt(runai_planned: Planned, tmp_path: Path) -> None:
    """A job that Run:ai preempts fails with a cause that allows another attempt."""
    plan = runai_planned("sleep 60")
    start_agents(plan)
    (tmp_path / "cloud" / plan.job / "words").write_text(json.dumps({"": "Preempted"}))
    failure = wait_for_status(plan, has_ended).failure
    assert failure
    assert (failure.cause, failure.retry) == ("preempted", True)
    MachinesJob(plan).remove()


def test_log_is_served_from_an_offset(runai_planned: Planned) -> None:
    """The log can be read from any offset, and has each line once."""
    plan = runai_planned("for i in 1 2 3 4 5 6 7 8; do echo line $i; sleep 0.4; done")
    start_agents(plan)
    wait_for_status(plan, lambda _: any(read_log(plan, 0)))
    assert wait_for_status(plan, has_ended).state == "succeeded"
    log_bytes = Path(plan.processes[0].log).read_bytes()
    assert read_log(plan, 0) == [f"line {number}" for number in range(1, 9)]
    Path(plan.processes[0].log).write_bytes(log_bytes[:40])
    with ProcessWatch(plan.processes) as watch:
        assert watch.drain_logs(idle_timeout_s=30.0)
    assert Path(plan.processes[0].log).read_bytes() == log_bytes
    MachinesJob(plan).remove()


# --- preflight
