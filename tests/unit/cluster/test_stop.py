"""A job that is stopped while nobody waits for it, on a fake API server: its last lines, and what may be missing."""

from collections.abc import Iterator

import pytest

from tests.conftest import Planned
from tests.fake_api import FakeApi
from tests.fake_objects import Object
from tests.pod_jobs import NODES, Job, after, lines, slowly
from tests.waiting import until
from torchyard.cluster import stop
from torchyard.cluster.backend import ClusterBackend
from torchyard.cluster.stop import stop_and_read
from torchyard.model.errors import ClusterError


@pytest.fixture
def job(fake_api: FakeApi, planned: Planned) -> Job:
    """A running job whose pods have a second of grace, and end only when the test says so."""
    made = Job(fake_api, planned(nodes=2, deadlines={"grace": 1}))
    for node in NODES:
        hold(made, made.pod(node, f"uid-{node}"))
    return made


def hold(job: Job, pod: Object) -> None:
    """Store a pod that stays, being deleted, as a pod does during its grace period."""
    pod["metadata"]["finalizers"] = ["torchyard.test/grace"]
    job.server.put(pod)


def let_go(job: Job, node: str) -> None:
    """End a pod's grace period."""
    place = ("v1/pods", "default", job.name(node))
    until(lambda: "deletionTimestamp" in job.server.objects.get(place)["metadata"])
    job.server.objects.patch(place, {"metadata": {"finalizers": None}})


def is_stopped(job: Job) -> bool:
    return bool(job.server.requests("DELETE", job.plan.job))


def last_words(job: Job, node: str) -> None:
    """A program that logs a line, and two more after its SIGTERM; then its pod is gone."""

    def pour() -> Iterator[bytes]:
        for number, line in enumerate(lines(3)):
            if number == 1:
                until(lambda: is_stopped(job))
            yield line
        let_go(job, node)

    job.server.logs[job.name(node)] = pour


def test_lines_of_the_grace_period_are_read(job: Job) -> None:
    """What a program logs after its SIGTERM is in its log, although no wait has followed it before."""
    for node in NODES:
        last_words(job, node)
    assert stop_and_read(job.plan) == {}
    assert [job.log(node) for node in NODES] == [["line 0", "line 1", "line 2"]] * 2


def test_container_that_starts_during_the_stop_is_followed(job: Job) -> None:
    """A container that starts while its job is being deleted is read as well."""
    hold(job, job.pod("worker-1", "uid-worker-1", "Pending", {"waiting": {}}))
    last_words(job, "worker-0")
    job.server.logs[job.name("worker-1")] = b"".join(lines(2))

    running = job.pod("worker-1", "uid-worker-1")

    def start() -> None:
        until(lambda: is_stopped(job))
        running["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z"
        hold(job, running)
        until(lambda: len(job.log("worker-1")) == 2)
        let_go(job, "worker-1")

    after(0, start)
    assert stop_and_read(job.plan) == {}
    assert job.log("worker-1") == ["line 0", "line 1"]


def test_pod_that_stays_is_not_waited_for(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod that outlives its grace period is left to the removal; its log may lack its end."""
    monkeypatch.setattr(stop, "_END_MARGIN_S", 0.0)
    monkeypatch.setattr(stop, "_LOG_IDLE_TIMEOUT_S", 0.2)
    last_words(job, "worker-0")
    job.server.logs[job.name("worker-1")] = slowly(2, 3.0, first=lines(1))
    lost = stop_and_read(job.plan)
    assert (list(lost), lost["worker-1"].startswith("possibly the last lines")) == (["worker-1"], True)


def test_job_that_was_never_made_is_nothing_to_stop(fake_api: FakeApi, planned: Planned) -> None:
    """Where the submit had not come to the job, nothing is deleted and no log is missing."""
    assert stop_and_read(planned()) == {}
    assert fake_api.requests("DELETE", ".") == []


def test_outage_does_not_hold_up_the_end(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that gives no answer is not waited for beyond the limit, and every log may then lack its end."""
    monkeypatch.setattr(stop, "_OUTAGE_TIMEOUT_S", 0.5)
    job.server.fail("GET", "/pods", 0)
    with pytest.raises(ClusterError, match="no response for"):
        stop_and_read(job.plan)
    lost = ClusterBackend(job.plan).stop_unwatched()
    assert set(lost) == set(job.plan.nodes)
    assert all(each.startswith("possibly the last lines: ") for each in lost.values())
