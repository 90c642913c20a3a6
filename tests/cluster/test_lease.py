"""The Lease of a run in a cluster: it records which machine owns the run, for takeovers and sweeps."""

import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from flows.sweep import sweep
from tests.cluster.jobs import Jobs, until
from tests.cluster.objects import delete_by_name
from tests.cluster.test_lost_launcher import Training, training  # noqa: F401  a fixture
from torchyard.assembly import sweep_run
from torchyard.cluster import create, lease, lease_renewal, orphans
from torchyard.model.errors import RunInUseError
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Deadlines
from torchyard.model.run import Handle, Outcome, RunEnd, Status
from torchyard.pods import lease_record, seal
from torchyard.steps.submit import submit
from torchyard.steps.teardown import teardown
from torchyard.steps.wait import wait
from torchyard.tasks.flow_run.ownership import obtain_key
from torchyard.tasks.flow_run.states import report_end

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("api")]


def read_lease(jobs: Jobs, plan: ManifestPlan) -> dict[str, Any]:
    """The current Lease of a run; empty if it does not exist."""
    return lease.read_lease(jobs.client, plan) or {}


def rewrite_lease(jobs: Jobs, plan: ManifestPlan, age_s: float = 0.0, **spec: Any) -> None:
    """Change a Lease as another machine would; `age_s`: seconds since the renewal."""
    renew_time = (datetime.now(UTC) - timedelta(seconds=age_s)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    jobs.client.patch(plan.lease, {"spec": {"renewTime": renew_time} | spec})


def count_objects(jobs: Jobs, plan: ManifestPlan) -> int:
    """The number of existing jobs and pods of a run."""
    kinds = ((plan.main["apiVersion"], plan.main["kind"]), ("v1", "Pod"))
    return sum(len(jobs.list_labelled(plan, *kind)) for kind in kinds)


# --- the objects that it owns


def test_deleting_the_lease_deletes_the_run(jobs: Jobs) -> None:
    """The Lease owns the store and the job, so deleting it deletes the run."""
    plan = jobs.start(profile="yolov5-volcano-etcd")
    for obj in plan.store:
        jobs.client.create(create.add_owner(obj, read_lease(jobs, plan)))
    until(lambda: count_objects(jobs, plan) == 4)
    delete_by_name(jobs.client, lease_record.LEASE_API, lease_record.LEASE_KIND, plan.run)
    until(lambda: count_objects(jobs, plan) == 0)


def test_last_teardown_deletes_the_lease(jobs: Jobs) -> None:
    """A teardown that ends the run deletes its Lease; a teardown before another attempt keeps it."""
    plan = jobs.start()
    assert teardown(plan, end_run=False) == ()
    assert lease_record.read_holder(read_lease(jobs, plan)) == lease.build_holder_identity(plan)
    assert teardown(plan) == ()
    assert read_lease(jobs, plan) == {}


def test_submitted_job_has_a_lease_that_is_renewed(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the submit on the Lease is renewed, whether or not the job is watched."""
    monkeypatch.setattr(lease_renewal, "RENEW_INTERVAL_S", 0.2)
    plan = jobs.start()
    renewed_at = lease_record.read_renew_time(read_lease(jobs, plan))
    until(lambda: lease_record.read_renew_time(read_lease(jobs, plan)) > renewed_at)


def test_wait_ends_when_another_machine_has_taken_the_run_over(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher whose run another machine has taken over ends without changing the job."""
    monkeypatch.setattr(lease_renewal, "RENEW_INTERVAL_S", 0.2)
    handle = submit(jobs.plan(), Deadlines())
    assert isinstance(handle.plan, ManifestPlan)
    plan = handle.plan
    until(lambda: count_objects(jobs, plan) == 3)
    rewrite_lease(jobs, handle.plan, holderIdentity="elsewhere:/runs")
    with pytest.raises(RunInUseError, match="taken it over"):
        wait(handle)
    assert count_objects(jobs, plan) == 3


def test_deleted_job_is_not_created_again(jobs: Jobs) -> None:
    """A run whose submitted job was deleted ends in the state `gone`, and does not submit a second one."""
    plan = jobs.start()
    jobs.delete(plan)
    until(lambda: count_objects(jobs, plan) == 0)
    handle: Handle = submit(plan, Deadlines())
    assert (handle.created, wait(handle).status.state) == (False, "gone")
    assert count_objects(jobs, plan) == 0


# --- another machine


@pytest.fixture
def with_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has the runs' keys, like their launchers."""
    monkeypatch.setattr(seal, "key_source", obtain_key)


@pytest.fixture
def without_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has no run's key, even if it has executed a run before."""
    monkeypatch.setattr(seal, "key_source", lambda _: "")


@pytest.fixture
def other_runs(training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:  # noqa: F811
    """The runs folder of another machine."""
    yield tmp_path / "elsewhere"
    monkeypatch.setenv("TORCHYARD_RUNS", str(tmp_path / "runs"))


def start_on_other_machine(training: Training, folder: Path) -> "subprocess.Popen[str]":  # noqa: F811
    """Start the run's next process, on another machine with its own runs folder."""
    os.environ["TORCHYARD_RUNS"] = str(folder)
    return training.flow_run.start_process()


def test_run_resumes_on_another_machine(training: Training, other_runs: Path) -> None:  # noqa: F811
    """When a machine is lost, another one attaches to the same job and has every line of its logs."""
    training.kill_launcher()
    plan = training.plan
    job_uids = training.list_job_uids()
    training.log.append("epoch 1")
    rewrite_lease(training.jobs, plan, age_s=lease.HOLDER_DEAD_AFTER_S + 1)
    process = start_on_other_machine(training, other_runs)
    until((other_runs / plan.run / "attempt-1/worker-0/log").exists, timeout_s=60)
    assert training.list_job_uids() == job_uids
    training.jobs.end(plan)
    process.communicate(timeout=60)
    assert (training.flow_run.read_state().name, training.report.leftovers) == ("Completed", ())
    assert [log.lines for log in training.report.attempts[0].collected.logs] == [2, 2]
    assert read_lease(training.jobs, plan) == {}


@pytest.mark.usefixtures("with_key")
@pytest.mark.parametrize("stopped", [False, True])
def test_ended_job_is_reported_by_another_machine(training: Training, other_runs: Path, stopped: bool) -> None:  # noqa: F811
    """After a job's end another machine reports it, and reads the logs or reports that they are on the lost machine."""
    training.kill_launcher()
    plan = training.plan
    lease.record_outcome(plan, Outcome(status=Status(state="succeeded", reason="2 of 2 pods succeeded"), exit_codes={}))
    if stopped:
        training.jobs.delete(plan)
    else:
        training.jobs.end(plan)
    rewrite_lease(training.jobs, plan, age_s=lease.HOLDER_DEAD_AFTER_S + 1)
    start_on_other_machine(training, other_runs).communicate(timeout=60)
    assert (training.flow_run.read_state().name, count_objects(training.jobs, plan)) == ("Completed", 0)
    logs = training.report.attempts[0].collected.logs
    assert [log.lines for log in logs] == ([0, 0] if stopped else [1, 1])
    assert ["what was read of it is on" in log.lost for log in logs] == [stopped, stopped]


@pytest.mark.usefixtures("without_key")
def test_forged_success_is_not_accepted(training: Training, other_runs: Path) -> None:  # noqa: F811
    """A user who can write to a Lease cannot turn a deleted job into a success."""
    training.kill_launcher()
    plan = training.plan
    lease.record_outcome(plan, Outcome(status=Status(state="succeeded", reason="2 of 2 pods succeeded"), exit_codes={}))
    lease.record_ending(plan, "succeeded", "2 of 2 pods succeeded")
    training.jobs.delete(plan)
    rewrite_lease(training.jobs, plan, age_s=lease.HOLDER_DEAD_AFTER_S + 1)
    start_on_other_machine(training, other_runs).communicate(timeout=60)
    assert training.flow_run.read_state().name == "Failed"
    assert "deleted by another user or controller" in training.report.sentence


def test_second_machine_leaves_the_run_to_the_first(training: Training, other_runs: Path) -> None:  # noqa: F811
    """If two machines start the same run, the second one notices that the first one renews the Lease, and exits."""
    first = training.start()
    plan = training.plan
    second = start_on_other_machine(training, other_runs)

    def has_exited() -> bool:
        rewrite_lease(training.jobs, plan)
        return second.poll() is not None

    until(has_exited, timeout_s=60)
    assert "is owned by" in second.communicate()[1]
    assert first.poll() is None
    training.jobs.end(plan)
    first.communicate(timeout=60)
    assert training.flow_run.read_state().name == "Completed"


@pytest.mark.usefixtures("with_key")
def test_cancelled_run_is_ended_by_another_machine(training: Training, other_runs: Path) -> None:  # noqa: F811
    """A run that resumes in the middle of a cancel completes the cancel, and does not continue the training."""
    training.kill_launcher()
    plan = training.plan
    lease.record_ending(plan, "cancelled", "cancelled through Prefect")
    rewrite_lease(training.jobs, plan, age_s=lease.HOLDER_DEAD_AFTER_S + 1)
    start_on_other_machine(training, other_runs).communicate(timeout=60)
    assert (training.flow_run.read_state().name, count_objects(training.jobs, plan)) == ("Cancelled", 0)


# --- the sweep


@pytest.fixture(autouse=True)
def short_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep observes a Lease for only one second before it decides that no process renews it."""
    monkeypatch.setattr(orphans, "LEASE_OBSERVATION_S", 1.0)


def run_sweep(**parameters: Any) -> str:
    """Run the sweep flow with these parameters, and return the message of its state."""
    return str(sweep(**parameters, return_state=True).message)


def test_sweep_finds_leftovers_of_another_machine(training: Training, other_runs: Path) -> None:  # noqa: F811
    """Any machine can sweep a run once its Lease has expired and Prefect reports that the run has ended."""
    training.kill_launcher()
    plan = training.plan
    until(lambda: training.flow_run.read_state().is_crashed())
    os.environ["TORCHYARD_RUNS"] = str(other_runs)
    assert training.flow_run.id.hex[-8:] not in run_sweep(dry_run=True)
    rewrite_lease(training.jobs, plan, age_s=1801)
    assert plan.run in run_sweep(dry_run=True)
    assert count_objects(training.jobs, plan) == 3
    run_sweep(runs=[plan.run])
    assert (count_objects(training.jobs, plan), read_lease(training.jobs, plan)) == (0, {})


def test_sweep_keeps_a_run_that_prefect_reports_as_running(training: Training, other_runs: Path) -> None:  # noqa: F811
    """A run with an expired Lease is not swept while Prefect reports that it is running."""
    process = training.start()
    plan = training.plan
    os.environ["TORCHYARD_RUNS"] = str(other_runs)
    rewrite_lease(training.jobs, plan, age_s=1801)
    assert plan.run not in run_sweep(dry_run=True)
    training.jobs.end(plan)
    process.communicate(timeout=60)


def test_named_run_stays_while_its_holder_renews(training: Training, other_runs: Path) -> None:  # noqa: F811
    """`sweep --run` removes a run before its Lease has expired, but not while another machine renews the Lease."""
    training.kill_launcher()
    plan = training.plan
    until(lambda: training.flow_run.read_state().is_crashed())
    os.environ["TORCHYARD_RUNS"] = str(other_runs)
    rewrite_lease(training.jobs, plan, holderIdentity="there:/runs")
    assert "renewed its Lease" in run_sweep(runs=[plan.run])
    assert count_objects(training.jobs, plan) == 3
    rewrite_lease(training.jobs, plan, age_s=lease.HOLDER_DEAD_AFTER_S + 1)
    assert run_sweep(runs=[plan.run]) == "swept 1 run"
    assert (count_objects(training.jobs, plan), read_lease(training.jobs, plan)) == (0, {})


def test_sweep_keeps_foreign_leases(jobs: Jobs) -> None:
    """A sweep does not remove a Lease without our label, however old it is."""
    plan = jobs.plan()
    foreign_lease = plan.lease | {"metadata": {"name": "strange"}, "spec": {"renewTime": "2020-01-01T00:00:00.000000Z"}}
    jobs.client.create(foreign_lease)
    assert "strange" not in run_sweep(dry_run=True)
    assert delete_by_name(jobs.client, lease_record.LEASE_API, lease_record.LEASE_KIND, "strange")


def test_folder_of_a_run_that_moved_is_not_swept(jobs: Jobs, training: Training) -> None:  # noqa: F811
    """A machine that returns does not sweep a run that another machine owns by now."""
    training.kill_launcher()
    plan = training.plan
    rewrite_lease(training.jobs, plan, holderIdentity="elsewhere:/runs")
    assert sweep_run(training.flow_run.folder, "sweep", RunEnd("swept", "no process owns it"), report_end) is None
    assert count_objects(training.jobs, plan) == 3
    rewrite_lease(training.jobs, plan, holderIdentity=lease.build_holder_identity(plan))
