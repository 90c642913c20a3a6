"""A launcher that is lost while its job runs in a cluster: real flow processes, killed and stopped."""

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.sweep import sweep
from tests.cluster.jobs import ANNOTATION, Jobs, until
from tests.cluster.test_logs import FakeLog
from tests.processes.flow_processes import FlowRunProcesses
from torchyard.assembly import sweep_run
from torchyard.common.log_lines import parse_log_line, read_new_lines
from torchyard.common.project_root import ROOT
from torchyard.model.plan import ManifestPlan
from torchyard.model.run import Report, RunEnd
from torchyard.run.folder import list_run_folders
from torchyard.tasks.flow_run.states import report_end

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("api")]


class Training:
    """One run with two fake pods, and the launcher processes that own it.

    Call `start` or `kill_launcher` first: the other methods need the run's folder.
    """

    def __init__(self, jobs: Jobs, path: Path, log: FakeLog) -> None:
        self.jobs = jobs
        self.log = log
        self.flow_run = FlowRunProcesses(path)

    @property
    def plan(self) -> ManifestPlan:
        attempt_plan = self.flow_run.folder.attempt_plan(1)
        assert attempt_plan
        assert isinstance(attempt_plan.plan, ManifestPlan)
        return attempt_plan.plan

    @property
    def report(self) -> Report:
        report = self.flow_run.folder.report()
        assert report
        return report

    def start(self) -> "subprocess.Popen[str]":
        """Start a launcher and wait until it follows both pods."""
        process = self.flow_run.start_process()
        until(lambda: all(self.read_texts(node) == self.log.lines for node in ("worker-0", "worker-1")), timeout_s=60)
        return process

    def kill_launcher(self) -> None:
        """Start a launcher and kill it once it follows both pods; the job keeps running."""
        process = self.start()
        process.kill()
        process.communicate()

    def read_texts(self, node: str) -> list[str]:
        """The lines of a node's log file, without timestamps; empty while there is no file."""
        for path in self.jobs.folder.glob(f"runs/*/attempt-1/{node}/log"):
            return [parse_log_line(text, node).text for text, _ in read_new_lines(path, 0)]
        return []

    def list_job_uids(self) -> list[str]:
        """The uid of every job of the run."""
        main = self.plan.main
        return [job["metadata"]["uid"] for job in self.jobs.list_labelled(self.plan, main["apiVersion"], main["kind"])]

    def read_pod_phases(self) -> list[str]:
        """The phase of every pod of the run."""
        return [pod["status"]["phase"] for pod in self.jobs.list_labelled(self.plan, "v1", "Pod")]


@pytest.fixture
def training(jobs: Jobs, fake_overrides: dict[str, Any], tmp_path: Path) -> Iterator[Training]:
    """A run with two fake pods; it is swept when the test ends."""
    log = FakeLog(tmp_path / "pod.log")
    log.append("epoch 0")
    document = yaml.safe_load((ROOT / "profiles" / "yolov5-volcano.yaml").read_text())
    document["pod"] |= {
        "annotations": {f"{ANNOTATION}log": str(log.path)},
        "node_selector": fake_overrides["pod.node_selector"],
    }
    document |= {"cluster": {"namespace": jobs.namespace}, "attempts": 1, "metrics": "none"}
    path = tmp_path / "training.yaml"
    path.write_text(yaml.safe_dump(document))
    yield Training(jobs, path, log)
    for folder in list_run_folders():
        sweep_run(folder, "test", RunEnd("swept", "the test is over"), report_end)


def test_lost_run_is_resumed(training: Training) -> None:
    """After a SIGKILL the job keeps running; the resumed run ends Completed, with one job and complete logs."""
    training.kill_launcher()
    job_uids = training.list_job_uids()
    training.log.append("epoch 1", "epoch 2")
    assert training.read_pod_phases() == ["Running", "Running"]
    process = training.flow_run.start_process()
    until(lambda: training.read_texts("worker-0") == training.log.lines, timeout_s=60)
    assert training.list_job_uids() == job_uids
    training.jobs.end(training.plan)
    process.communicate(timeout=60)
    assert (training.flow_run.read_state().name, training.report.leftovers) == ("Completed", ())
    logs = training.report.attempts[0].collected.logs
    assert [(log.node, log.lines, log.lost) for log in logs] == [("worker-0", 3, ""), ("worker-1", 3, "")]


def test_job_that_ended_without_a_launcher_is_read(training: Training) -> None:
    """The next launcher reads the end and the logs of a job that ended while no process owned its run."""
    training.kill_launcher()
    training.log.append("epoch 1")
    training.jobs.end(training.plan)
    until(lambda: training.read_pod_phases() == ["Succeeded", "Succeeded"])
    training.flow_run.start_process().communicate(timeout=60)
    assert training.flow_run.read_state().name == "Completed"
    assert training.read_texts("worker-0") == training.read_texts("worker-1") == training.log.lines


def test_sweep_removes_a_lost_job(training: Training) -> None:
    """`sweep --run NAME` removes every object of a run that no process owns, even before its lease has expired."""
    training.kill_launcher()
    assert training.list_job_uids()
    assert sweep(runs=[training.plan.run], return_state=True).is_completed()
    assert (training.list_job_uids(), training.read_pod_phases(), training.flow_run.read_state().name) == (
        [],
        [],
        "Swept",
    )


@pytest.mark.parametrize("way", ["stop", "cancel"])
def test_intended_end_removes_the_job(training: Training, way: str) -> None:
    """SIGTERM, or a cancel through Prefect, tears everything down within 30 s, and the report contains which it was."""
    process = training.start()
    started_at = time.monotonic()
    if way == "stop":
        process.send_signal(signal.SIGTERM)
    else:
        training.flow_run.cancel()
    process.communicate(timeout=30)
    assert time.monotonic() - started_at < 30
    assert (training.list_job_uids(), training.read_pod_phases(), training.report.leftovers) == ([], [], ())
    assert training.report.end == ("stopped" if way == "stop" else "cancelled")
    assert [log.lost for log in training.report.attempts[0].collected.logs] == ["", ""]
