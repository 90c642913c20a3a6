"""The runs of this folder's worker, and the message about runs that may still be training."""

import pytest
from prefect.client.schemas.objects import FlowRun

from scripts.processes import get_worker_name
from scripts.runs import is_worker_run, print_open_runs, tear_down_open_runs
from tests.conftest import RUN_ID
from tests.doubles.fake_prefect import FakePrefect
from torchyard.run.folder import RunFolder, runs_folder


def create_open_folder(name: str, lease: float) -> RunFolder:
    """The folder of a run without an end that no process owns."""
    folder = RunFolder(runs_folder() / name)
    folder.path.mkdir(parents=True)
    folder.record_event("start", run=RUN_ID, flow_run=RUN_ID)
    folder.renew(lease)
    return folder


def test_worker_is_known_by_its_name() -> None:
    """Only a run with the label of this folder's worker is ours."""
    are_ours = []
    for worker in (get_worker_name(), "torchyard of another folder"):
        run = FlowRun.model_validate({"flow_id": RUN_ID, "labels": {"prefect.worker.name": worker}})
        are_ours.append(is_worker_run(run))
    assert are_ours == [True, False]
    assert not is_worker_run(FlowRun.model_validate({"flow_id": RUN_ID}))  # started by hand


def test_open_runs_are_printed_with_their_remaining_time(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a server the runs that may still train are printed with the remaining time of their leases."""
    create_open_folder("sample-1", 600)
    create_open_folder("sample-2", -1)
    create_open_folder("sample-3", 600).record_event("end", end="succeeded")
    print_open_runs()
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("sample-1 has not ended: `make up` resumes it, or it ends with its lease in ")


def test_run_that_cannot_be_read_may_be_open(capsys: pytest.CaptureFixture[str]) -> None:
    """Its folder is reported, and the runs after it are printed."""
    (create_open_folder("sample-0", 600).path / "journal").unlink()
    (runs_folder() / "sample-0" / "journal").mkdir()
    create_open_folder("sample-1", 600)
    print_open_runs()
    output = capsys.readouterr()
    assert output.out.startswith("sample-1 has not ended")
    assert output.err.startswith("sample-0 may not have ended: ")


def test_down_ends_only_its_workers_runs(fake_prefect: FakePrefect, capsys: pytest.CaptureFixture[str]) -> None:
    """`make down` tears down a run that its worker took, and leaves another one's with a line about it."""
    folder = create_open_folder("sample-1", 600)
    ends = []
    for worker in ("another", get_worker_name()):
        fake_prefect.run_fields = {"labels": {"prefect.worker.name": worker}}
        tear_down_open_runs()
        ends.append(folder.read_record().find_last("end").get("end"))
    assert ends == [None, "swept"]
    left, removed = capsys.readouterr().out.splitlines()
    assert left == "sample-1: has not ended, and this folder's worker did not take it: left"
    assert removed == "sample-1: nothing left"
