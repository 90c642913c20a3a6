"""The Prefect tasks of a benchmark; tests/local/test_benchmark.py runs whole ones."""

from pathlib import Path

import pytest

from tests.benchmarks import compare_two_fabrics
from tests.conftest import RUN_ID
from tests.fake_prefect import STATE, FakePrefect
from tests.reports import short_report
from torchyard.archive.store import ARCHIVE_VARIABLE
from torchyard.model.run import RunEnd
from torchyard.run.folder import RunFolder, benchmark_folder, runs_folder
from torchyard.tasks.benchmark import (
    describe_best_bandwidths,
    get_child_deployment_name,
    measure_fabric,
    read_report,
    resume_benchmark,
)


@pytest.fixture
def folder(fake_prefect: FakePrefect, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """The folder of the benchmark that this process is."""
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__ID", RUN_ID)
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__RUN_COUNT", "1")
    folder = benchmark_folder("sample-a1b2c3d4")
    folder.path.mkdir(parents=True)
    return folder


def compare() -> RunEnd:
    """Stands for the measurements."""
    return RunEnd("failed", "roce: no room")


def refuse() -> RunEnd:
    """Stands for measurements that must not be started."""
    raise AssertionError("it is measured")


def test_ended_benchmark_only_reports_its_end(folder: RunFolder) -> None:
    """A benchmark that is started late, after its end, measures nothing and reports the same end."""
    first = resume_benchmark(folder, compare)
    assert (first, resume_benchmark(folder, refuse)) == (("failed", "roce: no room"),) * 2


def test_user_request_repeats_the_measurements(folder: RunFolder, fake_prefect: FakePrefect) -> None:
    """A failed benchmark that a user starts again is measured again."""
    resume_benchmark(folder, compare)
    states = (("FAILED", "Failed"), ("SCHEDULED", "AwaitingRetry"))
    fake_prefect.responses["/flow_run_states/"] = [STATE | {"type": kind, "name": name} for kind, name in states]
    assert resume_benchmark(folder, lambda: RunEnd("succeeded", "better")) == ("succeeded", "better")


def test_benchmark_that_is_lost_repeatedly_is_given_up(folder: RunFolder) -> None:
    """After three processes that died at the same fabric no fourth measures it."""
    for _ in range(3):
        folder.record_event("start", run=RUN_ID)
        folder.record_event("step", name="roce")
    assert resume_benchmark(folder, refuse).end == "gave-up"


def test_benchmark_that_was_lost_while_cancelled_ends_so(folder: RunFolder) -> None:
    """A process that finds the previous process's cancel in the journal completes it."""
    folder.record_event("start", run=RUN_ID)
    folder.record_event("ending", end="cancelled")
    assert resume_benchmark(folder, refuse) == ("cancelled", "cancelled through Prefect")
    assert folder.last("end")["end"] == "cancelled"


def test_task_measures_one_fabric() -> None:
    """The task has its function's name, and its result is never taken from an earlier run."""
    assert (measure_fabric.name, measure_fabric.persist_result) == ("measure_fabric", False)


def test_end_names_the_largest_bandwidth_of_each_fabric() -> None:
    """The final state's sentence has the best busbw over each fabric."""
    assert describe_best_bandwidths(compare_two_fabrics()) == "roce: 9.522 GB/s, tcp: 3.767 GB/s"


@pytest.mark.parametrize(("own_name", "child_name"), [("local", "train/a"), ("local@team-b", "train/a@team-b")])
def test_runs_are_those_of_the_same_installation(
    own_name: str, child_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A benchmark starts the deployments beside its own, which have the same pool in their names."""
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__NAME", own_name)
    assert get_child_deployment_name("a") == child_name


def test_report_of_a_run_elsewhere_comes_from_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of another pod, whose folder is not on this machine, is compared if both pods have the same archive."""
    monkeypatch.setenv(ARCHIVE_VARIABLE, f"file://{tmp_path}/archive")
    archived = RunFolder(tmp_path / "archive" / "sample-a1b2c3d4")
    archived.path.mkdir(parents=True)
    archived.record_event("start", run=RUN_ID, folder=str(archived.path))
    archived.save_report(short_report())
    report = read_report(RunFolder(runs_folder() / archived.name))
    assert report
    assert (report.run, report.end) == ("x-1", "succeeded")
