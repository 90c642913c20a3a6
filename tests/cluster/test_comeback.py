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
from tests.cluster.test_logs import Said
from tests.flow_processes import Carried
from torchyard.common.log_lines import read_line, read_new_lines
from torchyard.common.project_root import ROOT
from torchyard.model.plan import ManifestPlan
from torchyard.model.run import Report
from torchyard.run.folder import list_run_folders
from torchyard.run.sweep import sweep_run
from torchyard.tasks.flow_run.states import report_end

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("api")]


class Training:
    """One run with two fake pods, and the launcher processes that own it."""

    def __init__(self, jobs: Jobs, path: Path, said: Said) -> None:
        self.jobs, self.said = jobs, said
        self.carried = Carried(path)

    @property
    def plan(self) -> ManifestPlan:
        intent = self.carried.folder.attempt_plan(1)
        assert intent
        assert isinstance(intent.plan, ManifestPlan)
        return intent.plan

    @property
    def report(self) -> Report:
        found = self.carried.folder.report()
        assert found
        return found

    def begin(self) -> "subprocess.Popen[str]":
        """Start a launcher and wait until it follows both pods."""
        process = self.carried.process()
        until(lambda: all(self.texts(node) == self.said.lines for node in ("worker-0", "worker-1")), 60)
        return process

    def lose(self) -> None:
        process = self.begin()
        process.kill()
        process.communicate()

    def texts(self, node: str) -> list[str]:
        path = next(self.jobs.folder.glob(f"runs/*/attempt-1/{node}/log"), None)
        return [read_line(text, node).text for text, _ in read_new_lines(path, 0)] if path else []

    def there(self) -> list[str]:
        """The uid of every job of the run."""
        main = self.plan.main
        return [each["metadata"]["uid"] for each in self.jobs.labelled(self.plan, main["apiVersion"], main["kind"])]

    def pods(self) -> list[str]:
        return [pod["status"]["phase"] for pod in self.jobs.labelled(self.plan, "v1", "Pod")]


@pytest.fixture
def training(jobs: Jobs, fake: dict[str, Any], tmp_path: Path) -> Iterator[Training]:
    said = Said(tmp_path / "said.log")
    said.say("epoch 0")
    document = yaml.safe_load((ROOT / "profiles" / "yolov5-volcano.yaml").read_text())
    document["pod"] |= {"annotations": {f"{ANNOTATION}log": str(said.path)}, "node_selector": fake["pod.node_selector"]}
    document |= {"cluster": {"namespace": jobs.namespace}, "attempts": 1, "metrics": "none"}
    path = tmp_path / "training.yaml"
    path.write_text(yaml.safe_dump(document))
    yield Training(jobs, path, said)
    for folder in list_run_folders():
        sweep_run(folder, "test", "the test is over", report_end)


def test_lost_run_is_attached_to(training: Training) -> None:
    """After a SIGKILL the job runs on; the resumed run ends Completed, with one job and complete logs."""
    training.lose()
    before = training.there()
    training.said.say("epoch 1", "epoch 2")
    assert training.pods() == ["Running", "Running"]
    second = training.carried.process()
    until(lambda: training.texts("worker-0") == training.said.lines, 60)
    assert training.there() == before
    training.jobs.end(training.plan)
    second.communicate(timeout=60)
    assert (training.carried.state().name, training.report.leftovers) == ("Completed", ())
    logs = training.report.attempts[0].collected.logs
    assert [(log.node, log.lines, log.lost) for log in logs] == [("worker-0", 3, ""), ("worker-1", 3, "")]


def test_job_that_ended_alone_is_read(training: Training) -> None:
    """The next launcher reads the end and the logs of a job that ended while no process owned its run."""
    training.lose()
    training.said.say("epoch 1")
    training.jobs.end(training.plan)
    until(lambda: training.pods() == ["Succeeded", "Succeeded"])
    training.carried.process().communicate(timeout=60)
    assert training.carried.state().name == "Completed"
    assert training.texts("worker-0") == training.texts("worker-1") == training.said.lines


def test_sweep_takes_a_lost_job_away(training: Training) -> None:
    """`sweep --run NAME` removes every object of a run that no process owns, even before its lease has ended."""
    training.lose()
    assert training.there()
    assert sweep(runs=[training.plan.run], return_state=True).is_completed()
    assert (training.there(), training.pods(), training.carried.state().name) == ([], [], "Swept")


@pytest.mark.parametrize("how", ["stop", "cancel"])
def test_meant_end_takes_the_job_away(training: Training, how: str) -> None:
    """SIGTERM, or a cancel through Prefect, tears everything down within 30 s, and the report says which it was."""
    process = training.begin()
    began = time.monotonic()
    if how == "stop":
        process.send_signal(signal.SIGTERM)
    else:
        training.carried.cancel()
    process.communicate(timeout=30)
    assert time.monotonic() - began < 30
    assert (training.there(), training.pods(), training.report.leftovers) == ([], [], ())
    assert training.report.end == ("stopped" if how == "stop" else "cancelled")
    assert [log.lost for log in training.report.attempts[0].collected.logs] == ["", ""]
