"""Run:ai through its CLI: a fake of both generations (tests/programs/runai.py), with pods that are real processes."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.client.schemas.objects import State

from flows.sweep import sweep
from flows.train import train
from tests.conftest import Write, command_plan_of, load
from tests.test_lost import Carried
from torchyard.launchers import runai
from torchyard.loading.profile import ROOT
from torchyard.machines.backend import MachinesBackend, _remove_job, _start_agents
from torchyard.machines.checks import check_hosts
from torchyard.model.errors import HostError
from torchyard.model.plan import CommandPlan, Process
from torchyard.model.profile import Deadlines
from torchyard.model.run import ENDED_STATES, Handle, Observation, Report, Status
from torchyard.pods.template import CLI_RUN_LABEL, RUN_LABEL
from torchyard.run.folder import list_run_folders

FAKE = ROOT / "tests" / "programs" / "runai.py"
Cli = Callable[..., Path]
Planned = Callable[..., CommandPlan]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Make a `runai` of a generation, with how it hands on a command and what WORLD_SIZE counts there."""

    def make(generation: str = "v2", args: str = "exec", world: str = "processes") -> Path:
        path = tmp_path / "runai"
        told = {"STATE": tmp_path / "cloud", "GENERATION": generation, "ARGS": args, "WORLD": world}
        exports = "\n".join(f"export RUNAI_{name}={value}" for name, value in told.items())
        path.write_text(f'#!/bin/sh\n{exports}\nexec {sys.executable} -I -S {FAKE} "$@"\n')
        path.chmod(0o755)
        (tmp_path / "cloud").mkdir(exist_ok=True)
        return path

    return make


@pytest.fixture
def planned(cli: Cli, write: Write, tmp_path: Path) -> Planned:
    """Plan a job of two pods that run a line of a shell each."""

    def plan(line: str, generation: str = "v2") -> CommandPlan:
        keys = {"agent": "none", "rendezvous": "env", "program": "/bin/sh", "args": ["-c", line]}
        return command_plan_of(load(write(**profile(cli(generation), **keys))), tmp_path / "run")

    return plan


def profile(cli: Path, **keys: Any) -> dict[str, Any]:
    generation = "cli-v2" if "GENERATION=v2" in cli.read_text() else "cli-v1"
    options = {"project": "mlo", "through": generation, "cli": str(cli)}
    return {"launcher": "runai", "image": "pi:v1", "nodes": 2, "options": options, **keys}


# --- the whole line


def ran(path: Path, **keys: Any) -> tuple[State[Any], Report]:
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **keys}))
    end = train(str(path), return_state=True)
    (folder,) = list_run_folders()
    report = folder.report()
    assert report
    return end, report


@pytest.mark.slow
@pytest.mark.usefixtures("api")
@pytest.mark.parametrize("made", [("v1", "joined", "pods"), ("v2", "exec", "processes")])
def test_pi_is_computed(cli: Cli, write: Write, made: tuple[str, str, str]) -> None:
    """The first app of guide 001 runs on two pods of two processes, whatever the CLI makes of its command."""
    keys = {"processes": 2, "args": ["--trials=2", "--intervals=9999"], "metrics": "json-lines"}
    end, report = ran(write("pi", **profile(cli(*made), **keys)), program=str(ROOT / "programs" / "pi.py"))
    assert (str(end.name), report.left) == ("Completed", ())
    assert report.collected
    assert report.collected.metrics.summary["world_size"] == 4
    assert [log.lost for log in report.collected.logs] == ["", ""]


FAILS = """
import os, time
if os.environ["RANK"] == "1":
    raise ValueError("bad learning rate")
time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("api")
def test_failed_pod_has_its_cause_in_the_log(cli: Cli, write: Write, tmp_path: Path) -> None:
    """A pod that fails ends the run at once, with the exception that its own log shows."""
    path = write("fails", code=FAILS, **profile(cli(), agent="none", rendezvous="env"))
    end, report = ran(path, program=str(tmp_path / "fails.py"))
    assert end.is_failed()
    assert "bad learning rate" in report.sentence
    assert not list((tmp_path / "cloud").iterdir())


@pytest.mark.slow
@pytest.mark.usefixtures("api")
def test_sweep_deletes_what_a_killed_launcher_left(cli: Cli, write: Write, tmp_path: Path) -> None:
    """A job whose launcher was killed runs on in Run:ai until a sweep here deletes it; its log is taken first."""
    keys = {"agent": "none", "rendezvous": "env", "program": "/bin/sh", "args": ["-c", "echo up; sleep 60"]}
    run = Carried(write(**profile(cli(), **keys)))
    run.lose(lambda: len([path for path in tmp_path.glob("runs/*/attempt-1/*/log") if path.stat().st_size]) == 2)
    assert list((tmp_path / "cloud").iterdir())
    sweep(runs=[run.folder.name], return_state=True)
    assert (run.state().name, list((tmp_path / "cloud").iterdir())) == ("Swept", [])
    assert (run.folder.attempt(1) / "node-1" / "log").read_text().endswith("| up\n")


# --- the verbs


def begun(plan: CommandPlan) -> Handle:
    return _start_agents(plan, Deadlines())


def until(plan: CommandPlan, holds: Callable[[Mapping[str, Any], Status], bool], seconds: float = 15.0) -> Status:
    """Watch the job until something holds of its state; how it is then."""
    with MachinesBackend(plan).watch(list) as watch:
        end, status = time.monotonic() + seconds, Status(state="pending", reason="")
        while not holds(watch.seen, status):
            assert time.monotonic() < end, status
            watch.changes(0.2)
            status = runai.read_status(Observation(watch.seen, frozenset(), time.time()))
        if status.state in ENDED_STATES:
            watch.settle(5.0)
        return status


def ended(_: Mapping[str, Any], status: Status) -> bool:
    return status.state in ENDED_STATES


def log(plan: CommandPlan, node: int) -> list[str]:
    return [line.partition(" | ")[2] for line in Path(plan.on[node].log).read_text().splitlines()]


@pytest.mark.parametrize("generation", ["v1", "v2"])
def test_job_ends_and_its_logs_are_here(planned: Planned, generation: str) -> None:
    """Each pod's lines are in its own log, the last one too."""
    plan = planned("echo I am $RANK of $WORLD_SIZE; echo done", generation)
    begun(plan)
    assert until(plan, ended).state == "succeeded"
    _remove_job(plan)
    assert (log(plan, 0), log(plan, 1)) == (["I am 0 of 2", "done"], ["I am 1 of 2", "done"])


def test_second_submit_adopts(planned: Planned) -> None:
    """Whoever comes back finds the job, and when it was begun."""
    plan = planned("sleep 60")
    first, second = begun(plan), begun(plan)
    assert (first.created, second.created) == (True, False)
    assert first.submitted_at == second.submitted_at
    _remove_job(plan)


def test_foreign_job_is_refused(planned: Planned, tmp_path: Path) -> None:
    """A job of the same name with another run's label is nobody's to adopt."""
    plan = planned("sleep 60")
    given = tmp_path / "cloud" / plan.job / "given"
    begun(plan)
    given.write_text(given.read_text().replace(f"{CLI_RUN_LABEL}=sample-a1b2c3d4", f"{CLI_RUN_LABEL}=another"))
    with pytest.raises(HostError, match="in project mlo is somebody else's"):
        begun(plan)
    _remove_job(plan)


@pytest.mark.parametrize("run", ["sample-a1b2c3d4", "another"])
def test_job_of_the_version_before_is_recognized(planned: Planned, tmp_path: Path, run: str) -> None:
    """A job with the old label is adopted by its own run, and by no other."""
    plan = planned("sleep 60")
    given = tmp_path / "cloud" / plan.job / "given"
    begun(plan)
    given.write_text(given.read_text().replace(f"{CLI_RUN_LABEL}=sample-a1b2c3d4", f"{RUN_LABEL}={run}"))
    if run == "another":
        with pytest.raises(HostError, match="is somebody else's"):
            begun(plan)
    else:
        assert not begun(plan).created
    _remove_job(plan)


def test_cancel_leaves_nothing_and_keeps_the_log(planned: Planned, tmp_path: Path) -> None:
    """A running job is deleted with its pods; what it had printed is here, and cancelling again is a success."""
    plan = planned("echo up; sleep 60")
    begun(plan)
    until(plan, lambda seen, status: status.state == "running")
    with MachinesBackend(plan).watch(list) as watch:
        assert _remove_job(plan) == []
        watch.settle(5.0)
        assert watch.lost() == {}
    assert (log(plan, 0), log(plan, 1), _remove_job(plan)) == (["up"], ["up"], [])
    assert not list((tmp_path / "cloud").iterdir())


def test_deleted_job_is_gone(planned: Planned, tmp_path: Path) -> None:
    """A job that somebody else deletes is told as gone."""
    plan = planned("sleep 60")
    begun(plan)
    until(plan, lambda seen, status: status.state == "running")
    words = ("training", "pytorch", "delete", plan.job, "--project", "mlo")
    subprocess.run([tmp_path / "runai", *words], check=True)
    assert until(plan, ended).reason == "the job was deleted from Run:ai by somebody else"


def test_silent_cli_ends_nothing(planned: Planned, tmp_path: Path) -> None:
    """While a login has expired the job counts as it was last seen, and the reason says why nothing is heard."""
    plan, broken = planned("sleep 60"), tmp_path / "cloud" / "broken"
    begun(plan)
    until(plan, lambda seen, status: status.state == "running")
    broken.write_text("your token is expired, please log in")
    status = until(plan, lambda seen, status: "runai does not answer" in status.reason)
    assert (status.state, "your token is expired" in status.reason) == ("running", True)
    assert "your token is expired" in _remove_job(plan)[0]
    broken.unlink()
    until(plan, lambda seen, status: status.reason == "2 of 2 pods run")
    assert _remove_job(plan) == []


def test_preemption_is_worth_another_attempt(planned: Planned, tmp_path: Path) -> None:
    """A job that Run:ai preempts has failed for a cause that no log tells."""
    plan = planned("sleep 60")
    begun(plan)
    (tmp_path / "cloud" / plan.job / "words").write_text(json.dumps({"": "Preempted"}))
    failure = until(plan, ended).failure
    assert failure
    assert (failure.cause, failure.retry) == ("preempted", True)
    _remove_job(plan)


def test_refused_submit_says_why(planned: Planned, tmp_path: Path) -> None:
    """What the CLI refuses is told in its own words, and not as a job."""
    plan = planned("true")
    asked = plan.on[0].submit
    assert asked
    assert asked.input
    bad = asked.model_copy(update={"input": {**asked.input, "argv": [*asked.input["argv"][:5], "--no-such-flag"]}})
    blocks: tuple[Process, ...] = (plan.on[0].model_copy(update={"submit": bad}), plan.on[1])
    with pytest.raises(HostError, match="unknown flag: --no-such-flag"):
        begun(plan.model_copy(update={"on": blocks}))


def test_log_is_served_from_a_byte(planned: Planned) -> None:
    """The log is the same from any byte on, however often it is asked for, and no line comes twice."""
    plan = planned("for i in 1 2 3 4 5 6 7 8; do echo line $i; sleep 0.4; done")
    begun(plan)
    until(plan, lambda seen, status: any(log(plan, 0) if Path(plan.on[0].log).exists() else ()))
    assert until(plan, ended).state == "succeeded"
    whole, asked = Path(plan.on[0].log).read_bytes(), plan.on[0].follow
    assert asked
    assert log(plan, 0) == [f"line {number}" for number in range(1, 9)]
    assert subprocess.run([*asked.argv, "40"], capture_output=True, check=True).stdout == whole[40:]
    _remove_job(plan)


# --- preflight


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"cli": "/no/runai"}, "cannot start /no/runai: No such file or directory"),
        ({"generation": "cli-v1"}, "is no cli-v1; it is: cli-v2"),
        ({"project": "ml"}, "there is no project ml for this user"),
        ({}, "cli-v2, logged in, project mlo"),
    ],
)
def test_preflight_asks_the_cli(planned: Planned, changed: dict[str, str], said: str) -> None:
    """The program, its generation, the login and the project are asked before anything is submitted."""
    need = next(each for each in planned("true").requires if each.kind == "runai").model_copy(update=changed)
    (found,) = check_hosts([need])
    assert (said in found.detail, found.verdict) == (True, "failed" if changed else "ok")


def test_preflight_tells_a_missing_login(planned: Planned, cli: Cli) -> None:
    """A CLI that nobody is logged in to is told with the way to log in."""
    plan, path = planned("true"), cli()
    path.write_text(path.read_text().replace("\nexec", '\n[ "$1" != whoami ] || { echo not logged in; exit 1; }\nexec'))
    (found,) = check_hosts([each for each in plan.requires if each.kind == "runai"])
    assert (found.detail, found.remedy) == ("nobody is logged in: not logged in", f"{path} login")
