"""A Run:ai job: submitted once, never adopted from another run, and gone only after two responses without it."""

import errno
import io
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from tests.doubles.runai_jobs import Planned, start_agents
from torchyard.host import runai
from torchyard.host.identity import read_boot_clock
from torchyard.host.runai import update_state
from torchyard.host.runai_cli import JobResponse, RunaiJob, RunaiPod
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


# --- a verb on a job that exists


class VerbExitError(Exception):
    """The process of a verb has left."""


class FakeJob(RunaiJob):
    """A job of 40 pods that exists until it is deleted."""

    def __init__(self, folder: Path) -> None:
        super().__init__([str(folder), "40", "cli-v2", "mlo", "runai", "sample-a1b2c3d4-1"])
        self.is_deleted = False

    def query(self) -> JobResponse:
        return MISSING if self.is_deleted else FOUND

    def call(self, argv: list[str]) -> tuple[int, str]:
        assert "delete" in argv
        self.is_deleted = True
        return 0, ""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeJob:
    """A job whose verbs run in this process."""

    def leave(_: int) -> None:
        raise VerbExitError

    job = FakeJob(tmp_path / "run")
    monkeypatch.setattr(runai, "query_job", FakeJob.query)
    monkeypatch.setattr(runai, "query_cli", lambda argv, **_: job.call(argv))
    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(os, "umask", lambda _: 0o022)
    return job


def run_verb(verb: str, job: RunaiJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run `submit` or `cancel` until its process would leave."""
    request = {"run": "sample-a1b2c3d4", "spec": {"run": "sample-a1b2c3d4", "argv": []}}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"node-0": request})))
    with pytest.raises(VerbExitError):
        runai.main(verb, job, [])


@pytest.fixture
def hanging_copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[RunaiPod]]:
    """The pods whose logs are being copied; no copy ends before the test, and none is waited for."""
    pods: list[RunaiPod] = []
    is_over = threading.Event()

    def copy(pod: RunaiPod, **_: bool) -> None:
        pods.append(pod)
        is_over.wait()

    monkeypatch.setattr(runai, "copy_log", copy)
    monkeypatch.setattr(runai, "_COPY_TIMEOUT_S", 0.0)
    yield pods
    is_over.set()


def test_hanging_logs_do_not_prevent_the_deletion(
    job: FakeJob, hanging_copies: list[RunaiPod], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job is deleted, and the verb leaves, while the logs of its lost nodes are still being read."""
    run_verb("cancel", job, monkeypatch)
    assert json.loads(capsys.readouterr().out) == {"node-0": {"phase": "absent", "left": []}}
    assert len(hanging_copies) <= 8


def test_full_disk_does_not_prevent_the_deletion(
    job: FakeJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job is deleted although neither its logs nor its state can be written."""
    Path(job.folder).touch()
    run_verb("cancel", job, monkeypatch)
    assert json.loads(capsys.readouterr().out) == {"node-0": {"phase": "absent", "left": []}}


def test_state_that_cannot_be_read_is_kept(job: FakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without descriptors a job is not new: its state with the time of its submission is not replaced."""
    run_verb("submit", job, monkeypatch)
    state_path = Path(job.folder, "state")
    state = state_path.read_bytes()
    assert json.loads(state)["submitted"] > 0

    def fail_to_read(path: str, mode: str = "r", **options: Any) -> IO[Any]:
        if mode == "r":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return open(path, mode, **options)

    monkeypatch.setattr(runai, "open", fail_to_read, raising=False)
    with pytest.raises(OSError, match="Too many open files"):
        run_verb("submit", job, monkeypatch)
    assert state_path.read_bytes() == state
