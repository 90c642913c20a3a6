"""The Lease of a run in a cluster: it says which machine owns the run, for takeovers and sweeps."""

import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from flows.sweep import sweep
from tests.cluster.jobs import Jobs, until
from tests.cluster.test_comeback import Training, training  # noqa: F401  a fixture
from torchyard.cluster import create, lease, lease_renewal, orphans
from torchyard.model.errors import RunInUseError
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Deadlines
from torchyard.model.run import Handle, Outcome, Status
from torchyard.pods import lease_record, seal
from torchyard.run.sweep import sweep_run
from torchyard.steps.submit import submit
from torchyard.steps.teardown import teardown
from torchyard.steps.wait import wait
from torchyard.tasks.flow_run.ownership import obtain_key
from torchyard.tasks.flow_run.states import report_end

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("api")]


def held(jobs: Jobs, plan: ManifestPlan) -> dict[str, Any]:
    """The current Lease of a run."""
    return lease.read_lease(jobs.server, plan) or {}


def rewrite(jobs: Jobs, plan: ManifestPlan, ago: float = 0.0, **spec: Any) -> None:
    """Change a Lease as another machine would; `ago`: seconds since the renewal."""
    renewed = (datetime.now(UTC) - timedelta(seconds=ago)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    jobs.server.patch(plan.lease, {"spec": {"renewTime": renewed, **spec}})


def there(jobs: Jobs, plan: ManifestPlan) -> int:
    """The number of existing jobs and pods of a run."""
    kinds = ((plan.main["apiVersion"], plan.main["kind"]), ("v1", "Pod"))
    return sum(len(jobs.labelled(plan, *kind)) for kind in kinds)


# --- what it owns


def test_one_delete_takes_everything(jobs: Jobs) -> None:
    """The Lease owns the store and the job, so deleting it deletes the run."""
    plan = jobs.start(profile="yolov5-volcano-etcd")
    for thing in plan.store:
        jobs.server.create(create._add_owner(thing, held(jobs, plan)))
    until(lambda: there(jobs, plan) == 4)
    jobs.server.delete(lease_record.LEASE_API, lease_record.LEASE_KIND, plan.run)
    until(lambda: there(jobs, plan) == 0)


def test_lease_goes_last(jobs: Jobs) -> None:
    """A teardown that ends the run deletes its Lease; a teardown before another attempt keeps it."""
    plan = jobs.start()
    assert teardown(plan, end_run=False) == ()
    assert lease_record.read_holder(held(jobs, plan)) == lease._holder_identity(plan)
    assert teardown(plan) == ()
    assert held(jobs, plan) == {}


def test_submitted_job_has_a_lease_that_is_renewed(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the submit on the Lease is renewed, whether or not the job is watched."""
    monkeypatch.setattr(lease_renewal, "RENEW_INTERVAL_S", 0.2)
    plan = jobs.start()
    first = lease_record.read_renew_time(held(jobs, plan))
    until(lambda: lease_record.read_renew_time(held(jobs, plan)) > first)


def test_wait_ends_where_another_has_taken_the_run_over(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher whose run another machine has taken over ends without touching the job."""
    monkeypatch.setattr(lease_renewal, "RENEW_INTERVAL_S", 0.2)
    handle = submit(jobs.plan(), Deadlines())
    assert isinstance(handle.plan, ManifestPlan)
    plan = handle.plan
    until(lambda: there(jobs, plan) == 3)
    rewrite(jobs, handle.plan, holderIdentity="elsewhere:/runs")
    with pytest.raises(RunInUseError, match="taken it over"):
        wait(handle)
    assert there(jobs, plan) == 3


def test_job_that_somebody_deleted_is_not_made_again(jobs: Jobs) -> None:
    """A run whose submitted job has disappeared reports it as gone, and does not submit a second one."""
    plan = jobs.start()
    jobs.delete(plan)
    until(lambda: there(jobs, plan) == 0)
    again: Handle = submit(plan, Deadlines())
    assert (again.created, wait(again).status.state) == (False, "gone")
    assert there(jobs, plan) == 0


# --- another machine


@pytest.fixture
def keyed(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has the runs' keys, like their launchers."""
    monkeypatch.setattr(seal, "key_source", obtain_key)


@pytest.fixture
def keyless(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has no run's key, even if it has executed a run before."""
    monkeypatch.setattr(seal, "key_source", lambda _: "")


@pytest.fixture
def elsewhere(training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:  # noqa: F811
    """The runs folder of another machine."""
    yield tmp_path / "elsewhere"
    monkeypatch.setenv("TORCHYARD_RUNS", str(tmp_path / "runs"))


def carry_there(training: Training, folder: Path) -> "subprocess.Popen[str]":  # noqa: F811
    """The run's next process, on another machine with its own runs folder."""
    os.environ["TORCHYARD_RUNS"] = str(folder)
    return training.carried.process()


def test_run_comes_back_on_another_machine(training: Training, elsewhere: Path) -> None:  # noqa: F811
    """When a machine is lost, another one attaches to the same job and has every line of its logs."""
    training.lose()
    plan, before = training.plan, training.there()
    training.said.say("epoch 1")
    rewrite(training.jobs, plan, ago=lease.HOLDER_DEAD_AFTER_S + 1)
    second = carry_there(training, elsewhere)
    until((elsewhere / plan.run / "attempt-1/worker-0/log").exists, 60)
    assert training.there() == before
    training.jobs.end(plan)
    second.communicate(timeout=60)
    assert (training.carried.state().name, training.report.leftovers) == ("Completed", ())
    assert [log.lines for log in training.report.attempts[0].collected.logs] == [2, 2]
    assert held(training.jobs, plan) == {}


@pytest.mark.usefixtures("keyed")
@pytest.mark.parametrize("stopped", [False, True])
def test_ended_job_is_reported_by_another_machine(training: Training, elsewhere: Path, stopped: bool) -> None:  # noqa: F811
    """After a job's end another machine reports it, and reads the logs or says that they are on the lost machine."""
    training.lose()
    plan = training.plan
    lease.record_outcome(plan, Outcome(status=Status(state="succeeded", reason="2 of 2 pods succeeded"), exit_codes={}))
    training.jobs.delete(plan) if stopped else training.jobs.end(plan)
    rewrite(training.jobs, plan, ago=lease.HOLDER_DEAD_AFTER_S + 1)
    carry_there(training, elsewhere).communicate(timeout=60)
    assert (training.carried.state().name, there(training.jobs, plan)) == ("Completed", 0)
    logs = training.report.attempts[0].collected.logs
    assert [log.lines for log in logs] == ([0, 0] if stopped else [1, 1])
    assert ["what there is of it is on" in log.lost for log in logs] == [stopped, stopped]


@pytest.mark.usefixtures("keyless")
def test_forged_success_is_not_believed(training: Training, elsewhere: Path) -> None:  # noqa: F811
    """A user who can write to a Lease cannot turn a deleted job into a success."""
    training.lose()
    plan = training.plan
    lease.record_outcome(plan, Outcome(status=Status(state="succeeded", reason="2 of 2 pods succeeded"), exit_codes={}))
    lease.record_ending(plan, "succeeded", "it is said to have succeeded")
    training.jobs.delete(plan)
    rewrite(training.jobs, plan, ago=lease.HOLDER_DEAD_AFTER_S + 1)
    carry_there(training, elsewhere).communicate(timeout=60)
    assert training.carried.state().name == "Failed"
    assert "deleted by somebody else" in training.report.sentence


def test_second_machine_leaves_the_run_to_the_first(training: Training, elsewhere: Path) -> None:  # noqa: F811
    """If two machines start the same run, the second one sees the first one renew the Lease, and ends."""
    first = training.begin()
    plan = training.plan
    second = carry_there(training, elsewhere)

    def left() -> bool:
        rewrite(training.jobs, plan)
        return second.poll() is not None

    until(left, 60)
    assert "is owned by" in second.communicate()[1]
    assert first.poll() is None
    training.jobs.end(plan)
    first.communicate(timeout=60)
    assert training.carried.state().name == "Completed"


@pytest.mark.usefixtures("keyed")
def test_cancelled_run_is_ended_by_another_machine(training: Training, elsewhere: Path) -> None:  # noqa: F811
    """A run that resumes in the middle of a cancel completes the cancel, and does not continue the training."""
    training.lose()
    plan = training.plan
    lease.record_ending(plan, "cancelled", "cancelled through Prefect")
    rewrite(training.jobs, plan, ago=lease.HOLDER_DEAD_AFTER_S + 1)
    carry_there(training, elsewhere).communicate(timeout=60)
    assert (training.carried.state().name, there(training.jobs, plan)) == ("Cancelled", 0)


# --- the sweep


@pytest.fixture(autouse=True)
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep observes a Lease for one second only before it decides that no process renews it."""
    monkeypatch.setattr(orphans, "_LEASE_OBSERVATION_S", 1.0)


def swept(**how: Any) -> str:
    return str(sweep(**how, return_state=True).message)


def test_sweep_finds_what_another_machine_has_left(training: Training, elsewhere: Path) -> None:  # noqa: F811
    """Any machine can sweep a run and its Lease once the Lease has expired and Prefect says that the run has ended."""
    training.lose()
    plan = training.plan
    until(lambda: training.carried.state().is_crashed())
    os.environ["TORCHYARD_RUNS"] = str(elsewhere)
    assert training.carried.id.hex[-8:] not in swept(dry_run=True)
    rewrite(training.jobs, plan, ago=1801)
    assert plan.run in swept(dry_run=True)
    assert there(training.jobs, plan) == 3
    swept(runs=[plan.run])
    assert (there(training.jobs, plan), held(training.jobs, plan)) == (0, {})


def test_sweep_leaves_a_run_that_prefect_calls_alive(training: Training, elsewhere: Path) -> None:  # noqa: F811
    """A run with an expired Lease is not swept while Prefect says that it is running."""
    process = training.begin()
    plan = training.plan
    os.environ["TORCHYARD_RUNS"] = str(elsewhere)
    rewrite(training.jobs, plan, ago=1801)
    assert plan.run not in swept(dry_run=True)
    training.jobs.end(plan)
    process.communicate(timeout=60)


def test_named_run_stays_while_its_holder_renews(training: Training, elsewhere: Path) -> None:  # noqa: F811
    """`sweep --run` removes a run before its Lease has ended, but not while another machine renews the Lease."""
    training.lose()
    plan = training.plan
    until(lambda: training.carried.state().is_crashed())
    os.environ["TORCHYARD_RUNS"] = str(elsewhere)
    rewrite(training.jobs, plan, holderIdentity="there:/runs")
    assert "renewed its Lease" in swept(runs=[plan.run])
    assert there(training.jobs, plan) == 3
    rewrite(training.jobs, plan, ago=lease.HOLDER_DEAD_AFTER_S + 1)
    assert swept(runs=[plan.run]) == "swept 1 run"
    assert (there(training.jobs, plan), held(training.jobs, plan)) == (0, {})


def test_sweep_leaves_what_is_not_ours(jobs: Jobs) -> None:
    """A sweep leaves a Lease without our label alone, however old it is."""
    plan = jobs.plan()
    strange = {**plan.lease, "metadata": {"name": "strange"}, "spec": {"renewTime": "2020-01-01T00:00:00.000000Z"}}
    jobs.server.create(strange)
    assert "strange" not in swept(dry_run=True)
    assert jobs.server.delete(lease_record.LEASE_API, lease_record.LEASE_KIND, "strange")


def test_folder_of_a_run_that_moved_is_not_swept(jobs: Jobs, training: Training) -> None:  # noqa: F811
    """A machine that returns does not sweep a run that another machine owns by now."""
    training.lose()
    plan = training.plan
    rewrite(training.jobs, plan, holderIdentity="elsewhere:/runs")
    assert sweep_run(training.carried.folder, "sweep", "nobody carries it", report_end) is None
    assert there(training.jobs, plan) == 3
    rewrite(training.jobs, plan, holderIdentity=lease._holder_identity(plan))
