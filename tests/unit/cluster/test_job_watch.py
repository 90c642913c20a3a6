"""Watching a job of pods, on a fake API server: its states, slow logs, outages, and what is recorded."""

import json
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Planned
from tests.doubles.fake_api import FakeApi
from tests.doubles.fake_objects import ObjectKey
from tests.doubles.pod_jobs import NODES, Job, build_lines, run_later, slow_log
from tests.support.waiting import wait_until
from torchyard.cluster import outage
from torchyard.cluster.job_watch import ClusterWatch
from torchyard.cluster.logs import log_follower
from torchyard.diagnosis.job_status import count_retries
from torchyard.diagnosis.pod_facts import OBSTACLES_KEY, find_main_container, get_container_state
from torchyard.kube.client import Client
from torchyard.model.plan import ManifestPlan
from torchyard.model.run import Observation, Outcome, Row
from torchyard.pods import lease_record, seal
from torchyard.steps import wait

# --- slow logs at the end


def test_failed_job_is_not_deleted_before_its_logs_are_read(job: Job) -> None:
    """A failed job is deleted only after its logs are read, because the cause is in their last lines."""

    def is_there() -> bool:
        return not job.fake_api.find_requests("DELETE", job.plan.job)

    job.fake_api.logs[job.get_pod_name("worker-1")] = slow_log(20, 0.05, condition=is_there)
    job.end(code=1)
    outcome = job.wait()
    assert (outcome.status.state, outcome.lost, len(job.read_log("worker-1"))) == ("failed", {}, 20)
    assert not is_there()


def test_outage_does_not_count_as_idle_time(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The idle timeout of a log counts only from the moment the API server is back."""
    monkeypatch.setattr(log_follower, "FIRST_RETRY_DELAY_S", 0.05)
    monkeypatch.setattr(log_follower, "MAX_RETRY_DELAY_S", 0.05)
    job.fake_api.logs[job.get_pod_name("worker-0")] = b"".join(build_lines(5))
    with ClusterWatch(job.plan) as watch:
        job.fake_api.fail("GET", ".", 0)
        job.fake_api.cut()
        job.end()
        wait_until(lambda: watch.poll(timeout_s=0.01) is not None and not watch.is_fully_observed())
        run_later(2.3, job.fake_api.heal)
        assert (watch.drain_logs(idle_timeout_s=2.0), watch.lost_logs(), len(job.read_log())) == (True, {}, 5)


def test_cancel_interrupts_the_reading_of_logs(job: Job) -> None:
    """A cancel takes effect even while a slow log is read."""
    job.fake_api.logs[job.get_pod_name("worker-0")] = slow_log(10_000, 0.1)
    job.end()
    started_at = time.monotonic()

    def on_poll(_: tuple[Row, ...]) -> None:
        if time.monotonic() - started_at > 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.wait(on_poll=on_poll)


def test_job_that_may_not_be_stopped_is_not_read_forever(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    """After a deadline the wait ends, although the job may not be deleted and still prints: teardown reports it."""
    job.fake_api.fail("DELETE", job.plan.job, 403)
    job.fake_api.logs[job.get_pod_name("worker-0")] = slow_log(1000, 0.1)
    outcome = job.wait(run=1.0)
    assert (outcome.cause, outcome.lost.get("worker-0")) == (
        "run-deadline",
        "possibly the last lines: it was still being read",
    )
    assert "a fault of the test: 403" in caplog.text


def end_before_its_pods(job: Job, release_after_s: float) -> Outcome:
    """The outcome of a job whose end is reported before the ends of its pods, which are watched separately."""
    has_ended = threading.Event()

    def on_poll(_: tuple[Row, ...]) -> None:
        watches = [request for request in job.fake_api.find_requests("GET", ".") if request.query.get("watch")]
        if not has_ended.is_set() and len(watches) >= len(job.plan.watch):
            has_ended.set()
            job.fake_api.hold_watch("v1/pods")
            job.end(code=7)
            run_later(release_after_s, job.fake_api.release_watches)

    return job.wait(on_poll=on_poll)


def test_outcome_waits_for_the_exit_codes_of_the_pods(job: Job) -> None:
    """A job may be Failed before the ends of its pods have arrived: their exit codes are awaited."""
    outcome = end_before_its_pods(job, release_after_s=1.0)
    assert (outcome.status.state, outcome.exit_codes) == ("failed", {"worker-0": 7, "worker-1": 7})


def test_missing_exit_codes_are_not_awaited_forever(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the watch of the pods delivers nothing any more, the job ends as failed, without exit codes."""
    monkeypatch.setattr(wait, "EXIT_CODES_TIMEOUT_S", 0.3)
    outcome = end_before_its_pods(job, release_after_s=3.0)
    assert (outcome.status.state, outcome.exit_codes) == ("failed", {"worker-0": None, "worker-1": None})


EMPTY_LIST = {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}
LISTS_OF_PODS = r"/pods\?(?!.*watch)"


def test_logs_of_pods_that_empty_lists_have_hidden_are_read(job: Job) -> None:
    """A job may succeed before its pods are observed: they are looked for, more than once, and their logs are read."""
    for node in NODES:
        job.fake_api.logs[job.get_pod_name(node)] = b"".join(build_lines(3))
    job.fake_api.hold_watch("v1/pods")
    job.fake_api.answer("GET", LISTS_OF_PODS, 200, EMPTY_LIST, times=2)
    job.end()
    outcome = job.wait()
    assert (outcome.status.state, outcome.lost, outcome.exit_codes) == ("succeeded", {}, dict.fromkeys(NODES, 0))
    assert [len(job.read_log(node)) for node in NODES] == [3, 3]


def test_log_of_a_pod_that_was_never_observed_is_lost(job: Job) -> None:
    """Each node of a job that succeeded has printed: a log that nobody could read is not an empty one."""
    job.fake_api.hold_watch("v1/pods")
    job.fake_api.answer("GET", LISTS_OF_PODS, 200, EMPTY_LIST)
    job.end()
    outcome = job.wait()
    assert outcome.status.state == "succeeded"
    assert outcome.lost == dict.fromkeys(NODES, "all lines: its process was never observed")


# --- what can be read at the moment


@pytest.mark.parametrize(("path", "is_observed"), [("/log", True), ("/pods[?]", False)])
def test_watch_is_disconnected_while_logs_or_pods_cannot_be_read(
    job: Job, monkeypatch: pytest.MonkeyPatch, path: str, is_observed: bool
) -> None:
    """While a log's stream is not open, or the pods cannot be watched, logs may grow unread; after that they do not."""
    monkeypatch.setattr(log_follower, "FIRST_RETRY_DELAY_S", 0.05)
    monkeypatch.setattr(log_follower, "MAX_RETRY_DELAY_S", 0.05)
    are_streams_open = threading.Event()
    are_streams_open.set()
    for node in NODES:
        job.fake_api.logs[job.get_pod_name(node)] = slow_log(1000, 0.02, condition=are_streams_open.is_set)

    def is_disconnected() -> bool:
        watch.poll(timeout_s=0.01)
        return watch.is_disconnected()

    with ClusterWatch(job.plan) as watch:
        wait_until(lambda: not is_disconnected())
        job.fake_api.fail("GET", path, 0)
        if path == "/log":
            are_streams_open.clear()
        job.fake_api.cut()
        wait_until(is_disconnected)
        assert watch.is_fully_observed() is is_observed
        are_streams_open.set()
        job.fake_api.heal()
        wait_until(lambda: not is_disconnected())
        are_streams_open.clear()
        job.end()
        assert watch.drain_logs(idle_timeout_s=10.0)


def test_outage_is_logged_with_its_end(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Polling a job logs that the API server does not respond, and later that the job is observed again."""
    monkeypatch.setattr(outage, "REPORT_AFTER_S", 0.0)
    caplog.set_level("INFO")
    with ClusterWatch(job.plan) as watch:

        def logs_after_poll(message: str) -> bool:
            watch.poll(timeout_s=0.01)
            return message in caplog.text

        job.fake_api.fail("GET", "/pods[?]", 0)
        job.fake_api.cut()
        wait_until(lambda: logs_after_poll("the API server does not respond: "))
        job.fake_api.heal()
        wait_until(lambda: logs_after_poll("the job is observed again"))


# --- what is recorded


def test_outcome_is_recorded_before_anything_is_deleted(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outcome is recorded on the Lease, so that a run resumed during its end does not start again."""
    monkeypatch.setattr(seal, "get_run_key", lambda _: "the run's own")
    job.end(code=1)
    job.wait()
    run_lease = job.fake_api.find(lease_record.LEASE_API, lease_record.LEASE_KIND, job.plan.run)
    assert run_lease
    outcome = lease_record.read_outcome(run_lease, "the run's own")
    assert outcome
    assert outcome.status.state == "failed"


def test_objects_are_saved_one_per_line(fake_api: FakeApi, fake_server: Client, planned: Planned) -> None:
    """The file is JSON with one line per object, so that writing it needs no second copy of all of them."""
    plan = planned(nodes=2).model_copy(update={"cluster": fake_server.cluster})
    for node in plan.nodes:
        metadata = {"name": f"{plan.job}-{node}", "labels": plan.labels}
        fake_api.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {"phase": "Pending"}})
    watch = ClusterWatch(plan)
    with watch:
        watch.drain_logs(idle_timeout_s=0.0)
    text = Path(plan.folder, "objects.json").read_text()
    assert json.loads(text) == watch.states
    assert len(text.splitlines()) == len(plan.nodes) + 2


# --- pods that take a place


@pytest.fixture
def suffixed_job(planned: Planned, fake_server: Client) -> Iterator[tuple[ManifestPlan, ClusterWatch]]:
    """A watched job whose controller appends a random suffix to the names of its pods."""
    plan = planned(nodes=2, launcher="jobset").model_copy(update={"cluster": fake_server.cluster})
    with ClusterWatch(plan) as watch:
        yield plan, watch


def put_pod(fake_api: FakeApi, plan: ManifestPlan, name: str, phase: str = "Running") -> None:
    """Create a pod of the job."""
    metadata = {"name": f"{plan.job}-{name}", "labels": plan.labels}
    fake_api.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {"phase": phase}})


def read_name_suffixes(watch: ClusterWatch) -> dict[str, str]:
    """The last part of each object's name, by its key in `states`."""
    watch.poll(timeout_s=0.05)
    return {key: obj["metadata"]["name"].rpartition("-")[2] for key, obj in watch.states.items()}


def test_late_deletion_of_a_pod_does_not_remove_its_successor(
    fake_api: FakeApi, suffixed_job: tuple[ManifestPlan, ClusterWatch]
) -> None:
    """A recreated pod is its node's pod; the late deletion of the earlier one changes nothing."""
    plan, watch = suffixed_job
    node, other_node = plan.nodes
    put_pod(fake_api, plan, f"{node}-old11")
    wait_until(lambda: read_name_suffixes(watch) == {f"Pod/{node}": "old11"})
    put_pod(fake_api, plan, f"{node}-new22")
    replaced = {f"Pod/{node}": "new22", f"Removed/{node}": "old11"}
    wait_until(lambda: read_name_suffixes(watch) == replaced)
    fake_api.objects.delete(ObjectKey("v1/pods", "default", f"{plan.job}-{node}-old11"), {})
    put_pod(fake_api, plan, f"{other_node}-new33")
    wait_until(lambda: f"Pod/{other_node}" in read_name_suffixes(watch))
    assert read_name_suffixes(watch) == replaced | {f"Pod/{other_node}": "new33"}


def test_late_change_of_a_replaced_pod_does_not_hide_its_successor(
    fake_api: FakeApi, suffixed_job: tuple[ManifestPlan, ClusterWatch]
) -> None:
    """A pod that failed and was replaced may stay and still change; the node's pod is the one that replaced it."""
    plan, watch = suffixed_job
    node, other_node = plan.nodes
    put_pod(fake_api, plan, f"{node}-old11", "Failed")
    wait_until(lambda: f"Pod/{node}" in read_name_suffixes(watch))
    put_pod(fake_api, plan, f"{node}-new22")
    wait_until(lambda: f"Removed/{node}" in read_name_suffixes(watch))
    fake_api.objects.patch(
        ObjectKey("v1/pods", "default", f"{plan.job}-{node}-old11"), {"metadata": {"finalizers": []}}
    )
    put_pod(fake_api, plan, f"{other_node}-new33")
    wait_until(lambda: f"Pod/{other_node}" in read_name_suffixes(watch))
    assert read_name_suffixes(watch)[f"Pod/{node}"] == "new22"
    assert count_retries(Observation(watch.states, frozenset())) == 1


def test_pods_of_one_node_are_listed_in_the_order_of_their_creation(
    planned: Planned, fake_api: FakeApi, fake_server: Client
) -> None:
    """A watch that attaches to a job whose controller has replaced pods finds the last one of each node."""
    plan = planned(nodes=1, launcher="job").model_copy(update={"cluster": fake_server.cluster})
    for minute, suffix in enumerate(["bbbbb", "ccccc", "aaaaa"]):
        metadata = {"name": f"{plan.job}-0-{suffix}", "labels": plan.labels}
        metadata["creationTimestamp"] = f"2026-01-01T00:0{minute}:00Z"
        fake_api.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {"phase": "Failed"}})
    with ClusterWatch(plan) as watch:
        assert read_name_suffixes(watch) == {"Pod/worker-0": "aaaaa", "Removed/worker-0": "bbbbb"}
        assert count_retries(Observation(watch.states, frozenset())) == 2


def test_watch_records_since_when_a_pod_waits_for_its_image(job: Job) -> None:
    """A pod keeps the time at which it was first seen to wait, and the error of its pull, until it waits no longer."""
    error = {"reason": "ErrImagePull", "message": "toomanyrequests"}
    back_off = {"reason": "ImagePullBackOff", "message": "Back-off"}
    job.set_pod("worker-0", "Pending", {"waiting": error})
    with ClusterWatch(job.plan) as watch:
        first = watch.states["Pod/worker-0"][OBSTACLES_KEY]
        job.set_pod("worker-0", "Pending", {"waiting": back_off})
        wait_until(lambda: watch.poll(timeout_s=0.01) and "Back-off" in str(get_container_state(get_pod(watch))))
        assert get_pod(watch)[OBSTACLES_KEY] == first
        job.set_pod("worker-0", "Pending", {"running": {}})
        wait_until(lambda: watch.poll(timeout_s=0.01) and "running" in get_container_state(get_pod(watch)))
        assert OBSTACLES_KEY not in get_pod(watch)
    assert [obstacle["message"] for obstacle in first.values()] == ["toomanyrequests"]


def get_pod(watch: ClusterWatch) -> Mapping[str, Any]:
    return watch.states["Pod/worker-0"]


def test_first_removed_pod_is_kept(fake_api: FakeApi, suffixed_job: tuple[ManifestPlan, ClusterWatch]) -> None:
    """The last state of a deleted pod is kept, because the other pods may fail as a consequence."""
    plan, watch = suffixed_job
    node = next(iter(plan.nodes))
    for name in ("old11", "new22"):
        put_pod(fake_api, plan, f"{node}-{name}", "Failed")
        wait_until(lambda: f"Pod/{node}" in read_name_suffixes(watch))
        fake_api.objects.delete(ObjectKey("v1/pods", "default", f"{plan.job}-{node}-{name}"), {})
        wait_until(lambda: f"Pod/{node}" not in read_name_suffixes(watch))
    assert read_name_suffixes(watch) == {f"Removed/{node}": "old11"}
    assert watch.states[f"Removed/{node}"]["status"]["phase"] == "Failed"


def test_failure_of_every_try_is_kept(fake_api: FakeApi, suffixed_job: tuple[ManifestPlan, ClusterWatch]) -> None:
    """A controller that tries again removes the failed pod: the exit code and end of each try are kept, in order."""
    plan, watch = suffixed_job
    node = next(iter(plan.nodes))
    for second, code in ((10, 7), (20, 1)):
        terminated = {"exitCode": code, "finishedAt": f"2026-01-01T00:00:{second}Z"}
        status = {
            "phase": "Failed",
            "containerStatuses": [{"name": find_main_container(plan.pod), "state": {"terminated": terminated}}],
        }
        name = f"{plan.job}-{node}-try{second}"
        metadata = {"name": name, "labels": plan.labels, "uid": f"uid-{second}"}
        fake_api.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status})
        wait_until(lambda: f"Pod/{node}" in read_name_suffixes(watch))
        fake_api.objects.delete(ObjectKey("v1/pods", "default", name), {})
        wait_until(lambda: f"Pod/{node}" not in read_name_suffixes(watch))
    assert [(failure.node, failure.exit_code) for failure in watch.container_failures()] == [(node, 7), (node, 1)]
    assert count_retries(Observation(watch.states, frozenset())) == 1


@pytest.mark.parametrize(("evicted_count", "ended_at"), [(0, 1767225670.0), (1, 1767225660.0), (2, None)])
def test_end_of_a_job_is_that_of_its_last_container(job: Job, evicted_count: int, ended_at: float | None) -> None:
    """A job has ended when its last container exited; a pod that was evicted without an end does not count."""
    for index, node in enumerate(NODES):
        terminated = {"exitCode": 0, "finishedAt": f"2026-01-01T00:01:{10 * index:02}Z"}
        is_evicted = index >= 2 - evicted_count
        job.set_pod(node, "Failed", {} if is_evicted else {"terminated": terminated})
    with ClusterWatch(job.plan) as watch:
        assert watch.ended_at() == ended_at
