"""Watching one kind of a job's objects on a fake API server: lists, changes, refusals and missed events."""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import Planned
from tests.fake_api import FakeApi
from tests.waiting import until
from torchyard.cluster import reflector
from torchyard.cluster.reflector import ObjectChange, Reflector
from torchyard.kube.client import Client
from torchyard.model.plan import ManifestPlan, WatchedKind

PODS = WatchedKind(api="v1", kind="Pod")
GROUPS = WatchedKind(api="scheduling.volcano.sh/v1beta1", kind="PodGroup")
PATIENCE_S = 20.0
Begin = Callable[..., Reflector]


@pytest.fixture
def plan(planned: Planned) -> ManifestPlan:
    return planned(nodes=2)


@pytest.fixture
def news() -> "queue.Queue[ObjectChange]":
    return queue.Queue()


@pytest.fixture
def begin(fake_server: Client, plan: ManifestPlan, news: "queue.Queue[ObjectChange]") -> Iterator[Begin]:
    """Start a watch; it ends with the test."""
    over = threading.Event()

    def start(watched: WatchedKind = PODS) -> Reflector:
        made = Reflector(fake_server, plan, watched, news, over)
        made.start()
        return made

    yield start
    over.set()


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do a full list every second instead of every four minutes."""
    monkeypatch.setattr(reflector, "_RESYNC_RANGE_S", (1.0, 1.5))


def pod(plan: ManifestPlan, name: str, **labels: str) -> dict[str, Any]:
    about = {"name": f"{plan.job}-{name}", "labels": {**plan.labels, **labels}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "status": {"phase": "Pending"}}


def next_name(plan: ManifestPlan, news: "queue.Queue[ObjectChange]") -> tuple[str, bool]:
    """The pod of the next change, and whether the pod still exists."""
    _, name, thing = news.get(timeout=PATIENCE_S)
    return name.removeprefix(f"{plan.job}-"), thing is not None


def next_other(plan: ManifestPlan, news: "queue.Queue[ObjectChange]") -> tuple[str, bool]:
    """The first change that is not worker-0 seen again."""
    while (found := next_name(plan, news)) == ("worker-0", True):
        pass
    return found


def test_first_list_tells_what_is_there(
    fake_api: FakeApi, plan: ManifestPlan, begin: Begin, news: "queue.Queue[ObjectChange]"
) -> None:
    """The first list reports every object with the run's labels, and none of another run."""
    fake_api.put(pod(plan, "worker-0"))
    other = pod(plan, "other")
    fake_api.put({**other, "metadata": {"name": "other", "labels": {"torchyard/run": "another"}}})
    watch = begin()
    assert watch.looked.wait(PATIENCE_S)
    assert next_name(plan, news) == ("worker-0", True)
    assert news.empty()


def test_changes_come_over_the_watch(
    fake_api: FakeApi, plan: ManifestPlan, begin: Begin, news: "queue.Queue[ObjectChange]"
) -> None:
    """Objects created, changed and deleted after the list are reported in order, without another list."""
    assert begin().looked.wait(PATIENCE_S)
    fake_api.put(pod(plan, "worker-0"))
    fake_api.put(pod(plan, "worker-0", changed="yes"))
    fake_api.objects.delete(("v1/pods", "default", f"{plan.job}-worker-0"), {})
    assert [next_name(plan, news) for _ in range(3)] == [("worker-0", True), ("worker-0", True), ("worker-0", False)]
    lists = [each for each in fake_api.requests("GET", "/pods") if "watch" not in each.query]
    assert len(lists) == 1


def test_forgotten_version_is_listed_anew(
    fake_api: FakeApi, plan: ManifestPlan, begin: Begin, news: "queue.Queue[ObjectChange]"
) -> None:
    """After a 410 the kind is listed again, and objects that have disappeared are reported as gone."""
    fake_api.put(pod(plan, "worker-0"))
    assert begin().looked.wait(PATIENCE_S)
    assert next_name(plan, news) == ("worker-0", True)
    place = ("v1/pods", "default", f"{plan.job}-worker-0")
    with fake_api.objects.changed:  # gone, and forgotten before any watch could report it
        del fake_api.objects._all[place]
        fake_api.objects.forget()
    assert next_other(plan, news) == ("worker-0", False)


@pytest.mark.usefixtures("often")
def test_watch_that_lies_is_found_out(
    fake_api: FakeApi, plan: ManifestPlan, begin: Begin, news: "queue.Queue[ObjectChange]"
) -> None:
    """The full list every few minutes finds a change that the watch did not report."""
    fake_api.put(pod(plan, "worker-0"))
    assert begin().looked.wait(PATIENCE_S)
    assert next_name(plan, news) == ("worker-0", True)
    place = ("v1/pods", "default", f"{plan.job}-worker-0")
    with fake_api.objects.changed:  # gone, without an event
        del fake_api.objects._all[place]
    assert next_other(plan, news) == ("worker-0", False)


def test_refused_first_look_is_a_refusal(fake_api: FakeApi, begin: Begin) -> None:
    """If the first list is refused, the watch keeps that refusal, and no object counts as absent."""
    fake_api.fail("GET", "/pods", 403)
    watch = begin()
    assert watch.looked.wait(PATIENCE_S)
    assert watch.refusal
    assert watch.refusal.status == 403


def test_refusal_later_takes_nothing_away(
    fake_api: FakeApi, plan: ManifestPlan, begin: Begin, news: "queue.Queue[ObjectChange]"
) -> None:
    """A right that is removed later is reported as trouble, and known objects stay known."""
    fake_api.put(pod(plan, "worker-0"))
    watch = begin()
    assert next_name(plan, news) == ("worker-0", True)
    refuse_later(fake_api, watch, 403)
    assert (news.empty(), watch.refusal) == (True, None)


def test_served_kind_that_answers_404_is_not_gone(
    fake_api: FakeApi, plan: ManifestPlan, begin: Begin, news: "queue.Queue[ObjectChange]"
) -> None:
    """A 404 for a kind that discovery still names is only trouble: known objects stay known."""
    fake_api.put(pod(plan, "worker-0"))
    watch = begin()
    assert next_name(plan, news) == ("worker-0", True)
    refuse_later(fake_api, watch, 404)
    assert news.empty()


def refuse_later(fake_api: FakeApi, watch: Reflector, status: int) -> None:
    """Refuse all requests for pods from now on, and wait until the watch has noticed."""
    fake_api.fail("GET", "/namespaces/default/pods", status)
    fake_api.objects.forget()
    until(lambda: getattr(watch.trouble, "status", 0) == status)


def test_unserved_kind_that_is_not_vital_is_no_trouble(fake_api: FakeApi, begin: Begin) -> None:
    """In a cluster without PodGroups their watch reports neither a refusal nor trouble."""
    fake_api.fail("GET", "/podgroups", 404)
    watch = begin(GROUPS)
    assert watch.looked.wait(PATIENCE_S)
    assert (watch.refusal, watch.trouble) == (None, None)


def test_broken_connections_are_made_again(
    fake_api: FakeApi, plan: ManifestPlan, begin: Begin, news: "queue.Queue[ObjectChange]"
) -> None:
    """A server that breaks every connection is trouble; once it answers, the watch goes on."""
    fake_api.fail("GET", "/pods", 0)
    watch = begin()
    until(lambda: watch.trouble)
    assert not watch.looked.is_set()
    fake_api.put(pod(plan, "worker-0"))
    fake_api.heal()
    assert next_name(plan, news) == ("worker-0", True)
    until(lambda: watch.trouble is None)


def test_error_of_the_server_asks_for_a_new_list(
    fake_api: FakeApi, plan: ManifestPlan, begin: Begin, news: "queue.Queue[ObjectChange]"
) -> None:
    """A server that answers a watch with an error may have forgotten the version: the kind is listed again."""
    assert begin().looked.wait(PATIENCE_S)
    until(lambda: fake_api.requests("GET", "/pods")[-1].query.get("watch"))
    fake_api.fail("GET", "watch=1", 503, times=1)
    fake_api.cut()
    until(lambda: len([each for each in fake_api.requests("GET", "/pods") if "watch" not in each.query]) == 2)
    fake_api.put(pod(plan, "worker-0"))
    assert next_name(plan, news) == ("worker-0", True)


def test_broken_connection_goes_on_from_the_same_version(fake_api: FakeApi, plan: ManifestPlan, begin: Begin) -> None:
    """After a watch that ended without an error the next one continues it, and nothing is listed again."""
    assert begin().looked.wait(PATIENCE_S)
    until(lambda: fake_api.requests("GET", "/pods")[-1].query.get("watch"))
    fake_api.fail("GET", "watch=1", 0, times=1)
    fake_api.cut()
    until(lambda: len([each for each in fake_api.requests("GET", "/pods") if "watch" in each.query]) == 3)
    lists = [each for each in fake_api.requests("GET", "/pods") if "watch" not in each.query]
    versions = {each.query["resourceVersion"] for each in fake_api.requests("GET", "/pods") if "watch" in each.query}
    assert (len(lists), len(versions)) == (1, 1)
