"""A run is looked after from its start until its teardown is done: its folder's lease, and its Lease in a cluster."""

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import tasks.train
from flows.train import train
from tasks.reporter import PrefectReporter
from tests.conftest import RUN_ID, Planned, Write, load
from tests.fake_api import FakeApi
from tests.waiting import until
from torchyard.backend import backend_of
from torchyard.cluster import lease, lease_renewal
from torchyard.kube.client import get_cluster_client
from torchyard.model.errors import RunInUseError
from torchyard.pods import lease_record
from torchyard.run import folder_lease
from torchyard.run.folder import RunFolder, list_run_folders
from torchyard.run.folder_lease import hold_folder_lease
from torchyard.run.reporter import LocalReporter
from torchyard.run.runner import Runner
from torchyard.run.signals import SignalHold
from torchyard.steps.collect import collect


def mtime(folder: RunFolder) -> int:
    return (folder.path / "lease").stat().st_mtime_ns


def age(folder: RunFolder) -> int:
    """Make the lease look old; its time then."""
    os.utime(folder.path / "lease", (1, 1))
    return mtime(folder)


@pytest.mark.slow
@pytest.mark.usefixtures("api")
def test_collect_does_not_let_the_lease_run_out(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the logs are read, for however long, the lease is renewed; and not any more once the run has ended."""
    monkeypatch.setattr(folder_lease, "_RENEW_INTERVAL_S", 0.05)

    def slow(*of: Any) -> Any:
        (folder,) = list_run_folders()
        old = age(folder)
        until(lambda: mtime(folder) > old)
        return collect(*of)

    monkeypatch.setattr(tasks.train, "STEPS", tasks.train.STEPS._replace(collect=slow))
    assert train(str(write(code="")), return_state=True).is_completed()
    until(lambda: not [each for each in threading.enumerate() if each.name == "lease"])


def test_folder_that_is_gone_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A lease that cannot be renewed is said once, and the step goes on."""
    with hold_folder_lease(RunFolder(tmp_path / "none"), 60.0):
        until(lambda: "the run's lease is not renewed" in caplog.text)
    assert len(caplog.records) == 1


def renewed(fake_api: FakeApi, run: str) -> str:
    return lease_record.read_renew_time(fake_api.find(lease_record.LEASE_API, lease_record.LEASE_KIND, run) or {})


def test_lease_in_a_cluster_is_renewed_from_its_taking(
    planned: Planned, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is renewed before any watch is open and until the run lets go of it, and then it is gone."""
    monkeypatch.setattr(lease_renewal, "_RENEW_INTERVAL_S", 0.05)
    plan = planned(cluster={"namespace": "default"})
    first = lease_record.read_renew_time(lease_renewal.hold_lease(plan))
    until(lambda: renewed(fake_api, plan.run) > first)
    backend_of(plan).release()
    assert fake_api.find(lease_record.LEASE_API, lease_record.LEASE_KIND, plan.run) is None


def test_no_step_begins_in_a_run_that_another_carries(
    planned: Planned, fake_api: FakeApi, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher whose Lease was taken over ends before it collects, or tears down what is another's."""
    monkeypatch.setattr(lease_renewal, "_RENEW_INTERVAL_S", 0.05)
    line = Runner(load(write()), RUN_ID, LocalReporter())
    line.plan = plan = planned(cluster={"namespace": "default"})
    lease_renewal.hold_lease(plan)
    taken = {
        **lease._fill_lease(plan, get_cluster_client(plan.cluster)),
        "spec": {**plan.lease["spec"], "holderIdentity": "elsewhere:/runs"},
    }
    fake_api.put(taken)
    with pytest.raises(RunInUseError, match="taken it over"):
        until(line._check_owner)
    for touch in (lambda: line._step("collect", lambda: "", str), lambda: line.remove(plan)):
        with pytest.raises(RunInUseError):
            touch()
    assert not line.folder.events()
    assert not fake_api.requests("DELETE", "")


def test_lost_concurrency_slot_ends_no_run(write: Write) -> None:
    """Prefect cancels a flow whose concurrency slot it cannot renew, as in an outage: the job is attached to."""
    line, tries = Runner(load(write()), RUN_ID, PrefectReporter(RUN_ID)), iter([asyncio.CancelledError(), None])

    def work() -> tuple[Any, str]:
        if stop := next(tries):
            raise stop
        return "succeeded", "done"

    with SignalHold() as signals:
        assert line.protect(work, signals) == ("succeeded", "done")
