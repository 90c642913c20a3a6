"""Watching one kind of a job's objects on a fake API server: lists, changes, refusals and missed events."""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import Planned
from tests.doubles.fake_api import FakeApi
from tests.doubles.fake_objects import ObjectKey, RefusedError
from tests.support.waiting import wait_until
from torchyard.cluster import reflector
from torchyard.cluster.reflector import ObjectChange, Reflector
from torchyard.kube.client import Client
from torchyard.kube.retry import TransientError
from torchyard.model.plan import ManifestPlan, WatchedKind

PODS = WatchedKind(api="v1", kind="Pod")
GROUPS = WatchedKind(api="scheduling.volcano.sh/v1beta1", kind="PodGroup")
OWNED_GROUPS = GROUPS.model_copy(update={"owner_label": "test/job-uid"})
JOBS = WatchedKind(api="batch.volcano.sh/v1alpha1", kind="Job")
EMPTY_LIST = {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": []}
TIMEOUT_S = 20.0
StartReflector = Callable[..., Reflector]


@pytest.fixture
def plan(planned: Planned) -> ManifestPlan:
    return planned(nodes=2)


@pytest.fixture
def changes() -> "queue.Queue[ObjectChange]":
    return queue.Queue()


@pytest.fixture
def start_reflector(
    fake_server: Client, plan: ManifestPlan, changes: "queue.Queue[ObjectChange]"
) -> Iterator[StartReflector]:
    """Start a watch; it ends with the test."""
    stop_event = threading.Event()

    def start(watched: WatchedKind = PODS) -> Reflector:
        watch = Reflector(fake_server, plan, watched, changes, stop_event)
        watch.start()
        return watch

    yield start
    stop_event.set()


@pytest.fixture
def frequent_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do a full list every second instead of every four minutes."""
    monkeypatch.setattr(reflector, "RESYNC_RANGE_S", (1.0, 1.5))


def build_pod(plan: ManifestPlan, name: str, **labels: str) -> dict[str, Any]:
    metadata = {"name": f"{plan.job}-{name}", "labels": plan.labels | labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {"phase": "Pending"}}


def read_next_change(plan: ManifestPlan, changes: "queue.Queue[ObjectChange]") -> tuple[str, bool]:
    """The pod of the next change, and whether the pod still exists."""
    change = changes.get(timeout=TIMEOUT_S)
    return change.name.removeprefix(f"{plan.job}-"), change.obj is not None


def read_next_other_change(plan: ManifestPlan, changes: "queue.Queue[ObjectChange]") -> tuple[str, bool]:
    """The first change that is not worker-0 published again."""
    change = read_next_change(plan, changes)
    while change == ("worker-0", True):
        change = read_next_change(plan, changes)
    return change


def test_first_list_reports_existing_objects(
    fake_api: FakeApi, plan: ManifestPlan, start_reflector: StartReflector, changes: "queue.Queue[ObjectChange]"
) -> None:
    """The first list publishes the objects with the run's labels, and none of another run."""
    fake_api.put(build_pod(plan, "worker-0"))
    other = build_pod(plan, "other")
    fake_api.put(other | {"metadata": {"name": "other", "labels": {"torchyard/run": "another"}}})
    watch = start_reflector()
    assert watch.has_listed.wait(TIMEOUT_S)
    assert read_next_change(plan, changes) == ("worker-0", True)
    assert changes.empty()


def test_large_fields_of_a_pod_are_not_kept(
    fake_api: FakeApi, plan: ManifestPlan, start_reflector: StartReflector, changes: "queue.Queue[ObjectChange]"
) -> None:
    """Of a pod's spec, only what statuses are read from is published."""
    read_fields = {"name": "torch", "ports": [{"hostPort": 29500}]}
    container = read_fields | {"env": [{"name": "A", "value": "1"}], "volumeMounts": [], "command": ["torchrun"]}
    spec = {"containers": [container], "nodeName": "gpu-1", "restartPolicy": "Never", "volumes": [{"name": "shm"}]}
    fake_api.put(build_pod(plan, "worker-0") | {"spec": spec})
    start_reflector()
    pod = changes.get(timeout=TIMEOUT_S).obj
    assert pod
    assert pod["spec"] == {"containers": [read_fields], "nodeName": "gpu-1", "restartPolicy": "Never"}


def test_changes_come_over_the_watch(
    fake_api: FakeApi, plan: ManifestPlan, start_reflector: StartReflector, changes: "queue.Queue[ObjectChange]"
) -> None:
    """Objects created, changed and deleted after the list are reported in order, without another list."""
    assert start_reflector().has_listed.wait(TIMEOUT_S)
    fake_api.put(build_pod(plan, "worker-0"))
    fake_api.put(build_pod(plan, "worker-0", changed="yes"))
    fake_api.objects.delete(ObjectKey("v1/pods", "default", f"{plan.job}-worker-0"), {})
    assert [read_next_change(plan, changes) for _ in range(3)] == [
        ("worker-0", True),
        ("worker-0", True),
        ("worker-0", False),
    ]
    lists = [request for request in fake_api.find_requests("GET", "/pods") if "watch" not in request.query]
    assert len(lists) == 1


def test_forgotten_version_causes_a_new_list(
    fake_api: FakeApi, plan: ManifestPlan, start_reflector: StartReflector, changes: "queue.Queue[ObjectChange]"
) -> None:
    """After a 410 the kind is listed again, and objects that have disappeared are reported as gone."""
    fake_api.put(build_pod(plan, "worker-0"))
    assert start_reflector().has_listed.wait(TIMEOUT_S)
    assert read_next_change(plan, changes) == ("worker-0", True)
    key = ObjectKey("v1/pods", "default", f"{plan.job}-worker-0")
    with fake_api.objects.changed:  # gone, and forgotten before any watch could report it
        del fake_api.objects.stored[key]
        fake_api.objects.forget_changes()
    assert read_next_other_change(plan, changes) == ("worker-0", False)


@pytest.mark.usefixtures("frequent_lists")
def test_list_finds_a_change_that_the_watch_missed(
    fake_api: FakeApi, plan: ManifestPlan, start_reflector: StartReflector, changes: "queue.Queue[ObjectChange]"
) -> None:
    """The full list every few minutes finds a change that the watch did not report."""
    fake_api.put(build_pod(plan, "worker-0"))
    assert start_reflector().has_listed.wait(TIMEOUT_S)
    assert read_next_change(plan, changes) == ("worker-0", True)
    key = ObjectKey("v1/pods", "default", f"{plan.job}-worker-0")
    with fake_api.objects.changed:  # gone, without an event
        del fake_api.objects.stored[key]
    assert read_next_other_change(plan, changes) == ("worker-0", False)


def test_refused_first_list_is_a_refusal(fake_api: FakeApi, start_reflector: StartReflector) -> None:
    """If the first list is refused, the watch keeps that refusal, and no object counts as absent."""
    fake_api.fail("GET", "/pods", 403)
    watch = start_reflector()
    assert watch.has_listed.wait(TIMEOUT_S)
    assert watch.refusal
    assert watch.refusal.status == 403


def test_later_refusal_removes_no_object(
    fake_api: FakeApi, plan: ManifestPlan, start_reflector: StartReflector, changes: "queue.Queue[ObjectChange]"
) -> None:
    """A right that is removed later is reported as an error, and published objects stay."""
    fake_api.put(build_pod(plan, "worker-0"))
    watch = start_reflector()
    assert read_next_change(plan, changes) == ("worker-0", True)
    refuse_later(fake_api, watch, 403)
    assert (changes.empty(), watch.refusal) == (True, None)


@pytest.mark.parametrize(
    "body",
    [
        b"default backend - 404",
        RefusedError(404, "NotFound", "injected", {"name": "default", "kind": "namespaces"}).body,
    ],
    ids=["proxy", "hidden namespace"],
)
@pytest.mark.parametrize("watched", [PODS, JOBS], ids=["pods", "job"])
def test_404_removes_no_object(
    fake_api: FakeApi,
    plan: ManifestPlan,
    start_reflector: StartReflector,
    changes: "queue.Queue[ObjectChange]",
    watched: WatchedKind,
    body: Any,
) -> None:
    """While everything is 404, also discovery, published objects stay, and the watch reports an outage."""
    fake_api.put(build_pod(plan, "worker-0") if watched == PODS else plan.main)
    watch = start_reflector(watched)
    assert changes.get(timeout=TIMEOUT_S).obj
    fake_api.answer("GET", ".", 404, body)
    fake_api.objects.forget_changes()
    wait_until(lambda: watch.error)
    assert isinstance(watch.error, TransientError)
    assert (changes.empty(), watch.refusal) == (True, None)


@pytest.mark.parametrize("times", [1, 10**9], ids=["first list", "every list"])
def test_empty_list_does_not_remove_the_job(
    fake_api: FakeApi,
    plan: ManifestPlan,
    start_reflector: StartReflector,
    changes: "queue.Queue[ObjectChange]",
    times: int,
) -> None:
    """A job that a list lacks, also the first list of a process, is read by name: it exists."""
    fake_api.put(plan.main)
    fake_api.answer("GET", "/jobs[?](?!.*watch=1)", 200, EMPTY_LIST, times)
    watch = start_reflector(JOBS)
    assert watch.has_listed.wait(TIMEOUT_S)
    change = changes.get(timeout=TIMEOUT_S)
    assert (change.name, change.obj is not None, changes.empty()) == (plan.job, True, True)


def test_empty_list_is_repeated_soon(
    fake_api: FakeApi,
    plan: ManifestPlan,
    start_reflector: StartReflector,
    changes: "queue.Queue[ObjectChange]",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that attaches learns of its pods, although its first list of them was empty."""
    monkeypatch.setattr(reflector, "_DOUBTED_RANGE_S", (0.5, 0.6))
    fake_api.put(build_pod(plan, "worker-0"))
    fake_api.answer("GET", "/pods[?](?!.*watch=1)", 200, EMPTY_LIST, times=1)
    start_reflector()
    assert read_next_change(plan, changes) == ("worker-0", True)


@pytest.mark.usefixtures("frequent_lists")
def test_user_who_may_not_read_a_pod_needs_a_second_list(
    fake_api: FakeApi, plan: ManifestPlan, start_reflector: StartReflector, changes: "queue.Queue[ObjectChange]"
) -> None:
    """Where pods may be listed only, a pod that two lists lack is gone; one that the second list contains is not."""
    fake_api.put(build_pod(plan, "worker-0"))
    fake_api.fail("GET", "/pods/", 403)
    assert start_reflector().has_listed.wait(TIMEOUT_S)
    assert read_next_change(plan, changes) == ("worker-0", True)
    fake_api.answer("GET", "/pods[?](?!.*watch=1)", 200, EMPTY_LIST, times=1)
    count = len(fake_api.find_requests("GET", "/pods$"))
    wait_until(lambda: len(fake_api.find_requests("GET", "/pods$")) > count + 2)
    with fake_api.objects.changed:  # gone, without an event
        del fake_api.objects.stored[ObjectKey("v1/pods", "default", f"{plan.job}-worker-0")]
    assert read_next_other_change(plan, changes) == ("worker-0", False)


@pytest.mark.parametrize("is_gone", [True, False])
def test_deletion_of_the_job_is_read_by_name(
    fake_api: FakeApi,
    plan: ManifestPlan,
    start_reflector: StartReflector,
    changes: "queue.Queue[ObjectChange]",
    is_gone: bool,
) -> None:
    """A watch also reports a deletion if the job loses the labels that select it: such a job exists."""
    fake_api.put(plan.main)
    assert start_reflector(JOBS).has_listed.wait(TIMEOUT_S)
    assert changes.get(timeout=TIMEOUT_S).obj
    key = ObjectKey(f"{JOBS.api}/jobs", "default", plan.job)
    with fake_api.objects.changed:
        job = fake_api.objects.get(key)
        fake_api.objects.delete(key, {})
        if not is_gone:
            fake_api.objects.stored[key] = job
    assert (changes.get(timeout=TIMEOUT_S).obj is None) == is_gone


def test_object_of_another_owner_is_not_the_deleted_job(
    fake_api: FakeApi,
    plan: ManifestPlan,
    start_reflector: StartReflector,
    changes: "queue.Queue[ObjectChange]",
) -> None:
    """A job is gone although another user's object, without the run's labels, has its name by now."""
    fake_api.put(plan.main)
    assert start_reflector(JOBS).has_listed.wait(TIMEOUT_S)
    assert changes.get(timeout=TIMEOUT_S).obj
    key = ObjectKey(f"{JOBS.api}/jobs", "default", plan.job)
    with fake_api.objects.changed:
        fake_api.objects.delete(key, {})
        fake_api.put(plan.main | {"metadata": {"name": plan.job, "labels": {"team": "other"}}})
    assert changes.get(timeout=TIMEOUT_S).obj is None


def test_job_whose_kind_is_not_served_is_gone(
    fake_api: FakeApi, plan: ManifestPlan, start_reflector: StartReflector, changes: "queue.Queue[ObjectChange]"
) -> None:
    """If the discovery of a ready server twice lacks the kind of the job, the job is gone."""
    fake_api.put(plan.main)
    assert start_reflector(JOBS).has_listed.wait(TIMEOUT_S)
    assert changes.get(timeout=TIMEOUT_S).obj
    del fake_api.kinds[f"{JOBS.api}/jobs"]
    fake_api.cut()
    fake_api.objects.forget_changes()
    assert changes.get(timeout=TIMEOUT_S).obj is None


def refuse_later(fake_api: FakeApi, watch: Reflector, status: int) -> None:
    """Refuse all requests for pods from now on, and wait until the watch has received one."""
    fake_api.fail("GET", "/namespaces/default/pods", status)
    fake_api.objects.forget_changes()
    wait_until(lambda: getattr(watch.error, "status", 0) == status)


def test_unserved_kind_that_is_not_required_is_not_an_error(fake_api: FakeApi, start_reflector: StartReflector) -> None:
    """In a cluster without PodGroups their watch reports neither a refusal nor an error."""
    del fake_api.kinds[f"{GROUPS.api}/podgroups"]
    watch = start_reflector(GROUPS)
    assert watch.has_listed.wait(TIMEOUT_S)
    assert (watch.refusal, watch.error) == (None, None)


def build_owned_group(name: str, uid: str) -> dict[str, Any]:
    metadata = {"name": name, "labels": {"test/job-uid": uid}}
    return {"apiVersion": GROUPS.api, "kind": GROUPS.kind, "metadata": metadata}


def test_objects_are_found_by_the_uid_of_the_job(
    fake_server: Client,
    fake_api: FakeApi,
    plan: ManifestPlan,
    start_reflector: StartReflector,
    changes: "queue.Queue[ObjectChange]",
) -> None:
    """Objects without the run's labels are selected by the label with the job's uid, in lists and in watches."""
    uid = fake_server.create(plan.main)["metadata"]["uid"]
    for group in (build_owned_group("own", uid), build_owned_group("other", "another-uid")):
        fake_api.put(group)
    assert start_reflector(OWNED_GROUPS).has_listed.wait(TIMEOUT_S)
    assert changes.get(timeout=TIMEOUT_S).name == "own"
    for group in (build_owned_group("later-other", "another-uid"), build_owned_group("later", uid)):
        fake_api.put(group)
    assert changes.get(timeout=TIMEOUT_S).name == "later"


def test_owned_objects_of_a_job_that_does_not_exist_delay_nothing(
    fake_api: FakeApi, start_reflector: StartReflector, changes: "queue.Queue[ObjectChange]"
) -> None:
    """Before the job is created its uid is unknown: nothing is listed, and that is neither a refusal nor an error."""
    fake_api.put(build_owned_group("other", "another-uid"))
    watch = start_reflector(OWNED_GROUPS)
    assert watch.has_listed.wait(TIMEOUT_S)
    assert (watch.refusal, watch.error, changes.empty()) == (None, None, True)
    assert fake_api.find_requests("GET", "/podgroups") == []


def test_broken_connections_are_reopened(
    fake_api: FakeApi, plan: ManifestPlan, start_reflector: StartReflector, changes: "queue.Queue[ObjectChange]"
) -> None:
    """A server that breaks every connection is an error; once it responds, the watch continues."""
    fake_api.fail("GET", "/pods", 0)
    watch = start_reflector()
    wait_until(lambda: watch.error)
    assert not watch.has_listed.is_set()
    fake_api.put(build_pod(plan, "worker-0"))
    fake_api.heal()
    assert read_next_change(plan, changes) == ("worker-0", True)
    wait_until(lambda: watch.error is None)


def test_error_of_the_server_causes_a_new_list(
    fake_api: FakeApi, plan: ManifestPlan, start_reflector: StartReflector, changes: "queue.Queue[ObjectChange]"
) -> None:
    """A server that responds to a watch with an error may have forgotten the version: the kind is listed again."""
    assert start_reflector().has_listed.wait(TIMEOUT_S)
    wait_until(lambda: fake_api.find_requests("GET", "/pods")[-1].query.get("watch"))
    fake_api.fail("GET", "watch=1", 503, times=1)
    fake_api.cut()
    wait_until(
        lambda: (
            len([request for request in fake_api.find_requests("GET", "/pods") if "watch" not in request.query]) == 2
        )
    )
    fake_api.put(build_pod(plan, "worker-0"))
    assert read_next_change(plan, changes) == ("worker-0", True)


def test_broken_connection_resumes_from_the_same_version(
    fake_api: FakeApi, plan: ManifestPlan, start_reflector: StartReflector
) -> None:
    """After a watch that ended without an error the next one continues it, and nothing is listed again."""
    assert start_reflector().has_listed.wait(TIMEOUT_S)
    wait_until(lambda: fake_api.find_requests("GET", "/pods")[-1].query.get("watch"))
    fake_api.fail("GET", "watch=1", 0, times=1)
    fake_api.cut()
    wait_until(
        lambda: len([request for request in fake_api.find_requests("GET", "/pods") if "watch" in request.query]) == 3
    )
    lists = [request for request in fake_api.find_requests("GET", "/pods") if "watch" not in request.query]
    versions = {
        request.query["resourceVersion"]
        for request in fake_api.find_requests("GET", "/pods")
        if "watch" in request.query
    }
    assert (len(lists), len(versions)) == (1, 1)
