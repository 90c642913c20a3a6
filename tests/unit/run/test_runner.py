"""The runner: which faults end a run, which leave its job alone, and who may touch what another process owns."""

import asyncio
from pathlib import Path

import pytest

from tests.conftest import RUN_ID, Planned, Write, load
from tests.fake_api import FakeApi
from tests.lone_processes import lone_profile
from tests.waiting import until
from torchyard.cluster import lease, lease_renewal
from torchyard.common.project_root import ROOT
from torchyard.kube.client import get_cluster_client
from torchyard.loading.profile import load_profile
from torchyard.model.errors import DetachedError, FolderError, HandedOverError, HostError, RunInUseError
from torchyard.model.run import RunEnd
from torchyard.pods import lease_record
from torchyard.run.reporter import LocalReporter
from torchyard.run.runner import Runner
from torchyard.run.signals import SignalHold, protect_run
from torchyard.tasks.flow_run.reporter import PrefectReporter


@pytest.mark.parametrize("error", [HostError("h", "x", "y"), FolderError("x", "y"), ValueError("a fault of ours")])
@pytest.mark.parametrize("runs", [True, False])
def test_only_a_job_that_cannot_run_is_ended_by_a_fault(write: Write, error: Exception, runs: bool) -> None:
    """Before the submit a fault ends the run; once there is a job, the process leaves it alone."""
    line = Runner(load_profile(str(write())), RUN_ID, LocalReporter())
    line.may_run = runs

    def work() -> RunEnd:
        raise error

    if runs:
        with pytest.raises(DetachedError):
            protect_run(line, work, SignalHold())
    else:
        assert protect_run(line, work, SignalHold())[0] == "failed"


def test_no_step_begins_in_a_run_that_another_carries(
    planned: Planned, fake_api: FakeApi, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher whose Lease was taken over ends before it collects or tears down what another one owns."""
    monkeypatch.setattr(lease_renewal, "RENEW_INTERVAL_S", 0.05)
    line = Runner(load(write()), RUN_ID, LocalReporter())
    line.plan = plan = planned(cluster={"namespace": "default"})
    lease_renewal.hold_lease(plan)
    taken_lease = {
        **lease._fill_lease(plan, get_cluster_client(plan.cluster)),
        "spec": {**plan.lease["spec"], "holderIdentity": "elsewhere:/runs"},
    }
    fake_api.put(taken_lease)
    with pytest.raises(RunInUseError, match="taken it over"):
        until(line._check_owner)
    for touch in (lambda: line._run_step("collect", lambda: "", str), lambda: line.remove(plan)):
        with pytest.raises(RunInUseError):
            touch()
    assert not line.folder.events()
    assert not fake_api.requests("DELETE", "")


def test_lost_concurrency_slot_ends_no_run(write: Write) -> None:
    """If Prefect cancels a flow whose concurrency slot it cannot renew, as in an outage, the run goes on."""
    line, tries = Runner(load(write()), RUN_ID, PrefectReporter(RUN_ID)), iter([asyncio.CancelledError(), None])

    def work() -> RunEnd:
        if stop := next(tries):
            raise stop
        return RunEnd("succeeded", "done")

    with SignalHold() as signals:
        assert protect_run(line, work, signals) == ("succeeded", "done")


class HandedOn(LocalReporter):
    """An orchestrator that starts a stopped run again elsewhere, as Prefect does for a pod that is evicted."""

    def is_handed_on(self) -> bool:
        return True


def test_run_that_goes_on_elsewhere_is_not_torn_down(planned: Planned, fake_api: FakeApi, write: Write) -> None:
    """A stopped process whose run goes on in another one leaves the job, and its Lease to whoever comes."""
    line = Runner(load(write()), RUN_ID, HandedOn())
    line.plan = plan = planned(cluster={"namespace": "default"})
    lease_renewal.hold_lease(plan)

    def work() -> RunEnd:
        raise KeyboardInterrupt

    with SignalHold() as signals, pytest.raises(HandedOverError):
        protect_run(line, work, signals)
    assert lease_record.is_handed_over(lease.read_lease(get_cluster_client(plan.cluster), plan) or {})
    assert not fake_api.requests("DELETE", "")


def test_ready_binary_of_nccl_tests_is_run_as_it_is(write: Write, tmp_path: Path) -> None:
    """A program that is no Python, such as all_reduce_perf, gets its arguments; its table becomes the run's rows."""
    binary = tmp_path / "all_reduce_perf"
    binary.write_text(f'#!/bin/sh\n[ "$*" = "-b 8 -g 1" ] && cat {ROOT}/tests/logs/posted-nccl-tests-single.txt\n')
    binary.chmod(0o755)
    profile = lone_profile(write).model_copy(
        update={"program": str(binary), "args": ("-b", "8", "-g", "1"), "metrics": "nccl-tests"}
    )
    line = Runner(profile, RUN_ID, LocalReporter())
    assert line.run()[0] == "succeeded"
    rows = line.attempts[0].collected.metrics.rows
    assert [(row["size"], row["algbw"]) for row in rows] == [(8, 0.0), (4294967296, 664.33)]


def test_run_that_has_ended_reports_its_end_again(write: Write) -> None:
    """A second process of a run that has succeeded starts nothing, and reports the same end and sentence."""
    profile = lone_profile(write, "print('hello')")
    first = Runner(profile, RUN_ID, LocalReporter())
    ended = first.run()
    second = Runner(profile, RUN_ID, LocalReporter(2, is_retry_requested=False))
    assert (ended[0], second.run(), second.folder.attempts()) == ("succeeded", ended, [1])
    assert [event["name"] for event in second.folder.events() if event["event"] == "step"] == [
        *("preflight", "submit", "wait", "collect", "teardown"),
    ]
