"""Stopping a job that no process waits for, on a fake API server: its last lines, and what may be missing."""

from collections.abc import Iterator

import pytest

from tests.conftest import Planned
from tests.doubles.fake_api import FakeApi
from tests.doubles.fake_objects import Object, ObjectKey
from tests.doubles.pod_jobs import NODES, Job, build_lines, run_later, slow_log
from tests.support.waiting import wait_until
from torchyard.cluster import stop
from torchyard.cluster.job import ClusterJob
from torchyard.cluster.stop import stop_and_read
from torchyard.model.errors import ClusterError


@pytest.fixture
def job(fake_api: FakeApi, planned: Planned) -> Job:
    """A running job whose pods have a second of grace, and end only when the test ends them."""
    created_job = Job(fake_api, planned(nodes=2, deadlines={"grace": 1}))
    for node in NODES:
        hold(created_job, created_job.build_pod(node, f"uid-{node}"))
    return created_job


def hold(job: Job, pod: Object) -> None:
    """Store a pod that stays while it is being deleted, as a pod does during its grace period."""
    pod["metadata"]["finalizers"] = ["torchyard.test/grace"]
    job.fake_api.put(pod)


def end_grace_period(job: Job, node: str) -> None:
    """End a pod's grace period."""
    key = ObjectKey("v1/pods", "default", job.get_pod_name(node))
    wait_until(lambda: "deletionTimestamp" in job.fake_api.objects.get(key)["metadata"])
    job.fake_api.objects.patch(key, {"metadata": {"finalizers": None}})


def is_stopped(job: Job) -> bool:
    return bool(job.fake_api.find_requests("DELETE", job.plan.job))


def print_last_lines(job: Job, node: str) -> None:
    """A program that logs a line, and two more after its SIGTERM; then its pod is gone."""

    def stream() -> Iterator[bytes]:
        for number, line in enumerate(build_lines(3)):
            if number == 1:
                wait_until(lambda: is_stopped(job))
            yield line
        end_grace_period(job, node)

    job.fake_api.logs[job.get_pod_name(node)] = stream


def test_lines_of_the_grace_period_are_read(job: Job) -> None:
    """The lines that a program prints after its SIGTERM are in its log, although no process has followed it before."""
    for node in NODES:
        print_last_lines(job, node)
    assert stop_and_read(job.plan) == {}
    assert [job.read_log(node) for node in NODES] == [["line 0", "line 1", "line 2"]] * 2


def test_container_that_starts_during_the_stop_is_followed(job: Job) -> None:
    """A container that starts while its job is being deleted is read as well."""
    hold(job, job.build_pod("worker-1", "uid-worker-1", "Pending", {"waiting": {}}))
    print_last_lines(job, "worker-0")
    job.fake_api.logs[job.get_pod_name("worker-1")] = b"".join(build_lines(2))

    running = job.build_pod("worker-1", "uid-worker-1")

    def start() -> None:
        wait_until(lambda: is_stopped(job))
        running["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z"
        hold(job, running)
        wait_until(lambda: len(job.read_log("worker-1")) == 2)
        end_grace_period(job, "worker-1")

    run_later(0, start)
    assert stop_and_read(job.plan) == {}
    assert job.read_log("worker-1") == ["line 0", "line 1"]


def test_pod_that_stays_is_not_waited_for(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod that outlives its grace period is left to the removal; its log may lack its last lines."""
    monkeypatch.setattr(stop, "END_MARGIN_S", 0.0)
    monkeypatch.setattr(stop, "LOG_IDLE_TIMEOUT_S", 1.0)
    print_last_lines(job, "worker-0")
    job.fake_api.logs[job.get_pod_name("worker-1")] = slow_log(2, 3.0, first_lines=build_lines(1))
    missing = stop_and_read(job.plan)
    assert (list(missing), missing["worker-1"].startswith("possibly the last lines")) == (["worker-1"], True)


def test_job_that_was_not_created_is_not_stopped(fake_api: FakeApi, planned: Planned) -> None:
    """If the job was never created, nothing is deleted and no log is missing."""
    assert stop_and_read(planned()) == {}
    assert fake_api.find_requests("DELETE", ".") == []


def test_outage_does_not_block_the_stop(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not respond is not waited for beyond the limit, and every log may then lack its last lines."""
    monkeypatch.setattr(stop, "STOP_OUTAGE_TIMEOUT_S", 0.5)
    job.fake_api.fail("GET", "/pods", 0)
    with pytest.raises(ClusterError, match="no response for"):
        stop_and_read(job.plan)
    missing = ClusterJob(job.plan).stop_unwatched()
    assert set(missing) == set(job.plan.nodes)
    assert all(reason.startswith("possibly the last lines: ") for reason in missing.values())


@pytest.mark.parametrize("has_copy", [False, True])
def test_pods_are_deleted_by_one_request_only_if_all_are_the_jobs(
    job: Job, monkeypatch: pytest.MonkeyPatch, *, has_copy: bool
) -> None:
    """One request deletes the pods of a job that waits for them, unless another owner's pod has the same labels."""
    monkeypatch.setattr(stop, "END_MARGIN_S", 0.0)
    monkeypatch.setattr(stop, "LOG_IDLE_TIMEOUT_S", 0.2)
    obj = job.get_job()
    obj["metadata"]["finalizers"] = ["foregroundDeletion"]
    job.fake_api.put(obj)
    if has_copy:
        copy = job.build_pod("worker-0", "uid-copy")
        copy["metadata"] |= {"name": "copy", "ownerReferences": [{"uid": "other"}]}
        job.fake_api.put(copy)
    stop_and_read(job.plan)
    collections = job.fake_api.find_requests("DELETE", "/pods$")
    pods = [job.fake_api.find("v1", "Pod", job.get_pod_name(node)) for node in NODES]
    are_deleted = ["deletionTimestamp" in pod["metadata"] for pod in pods if pod]
    assert (bool(collections), are_deleted) == (not has_copy, [not has_copy] * 2)
