"""Every fault of the connection to the API server, once during a wait and once during a single request."""

import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.fault_proxy import CONTEXT, FaultProxy
from tests.cluster.jobs import Jobs, until
from tests.cluster.test_watch import has_ended, is_running, read_kinds
from torchyard.cluster import outage, reflector
from torchyard.cluster.job_watch import ClusterWatch
from torchyard.kube import http, retry
from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError
from torchyard.model.profile import Cluster

Fault = Callable[[FaultProxy], None]
ReadMessages = Callable[[ClusterWatch], list[str]]


def respond_with(status: int, times: int = 1000, **headers: str) -> Fault:
    """A fault: requests get this response, until the proxy is repaired."""

    def start(proxy: FaultProxy) -> None:
        proxy.respond("", status, {"kind": "Status", "message": "injected", "code": status}, times, **headers)
        proxy.cut()

    return start


def slow_down(proxy: FaultProxy) -> None:
    """A fault: every response is delayed by 5 s, until the proxy is repaired."""
    proxy.delay_s = 5.0
    proxy.cut()


def break_dns(proxy: FaultProxy) -> None:
    """A fault: DNS does not resolve the API server's name, until the proxy is repaired."""
    proxy.is_unresolvable = True
    proxy.cut()


def take_down(proxy: FaultProxy) -> None:
    """A fault: connections are closed and rejected, until the proxy is repaired."""
    proxy.is_down = True
    proxy.cut()


FAULTS = {
    "500": respond_with(500),
    "502": respond_with(502),
    "503": respond_with(503),
    "504": respond_with(504),
    "429 with Retry-After": respond_with(429, Retry_After="1"),
    "401 once": respond_with(401, times=1),
    "410": respond_with(410),
    "connections reset": FaultProxy.reset,
    "connections closed": take_down,
    "port closed": FaultProxy.refuse,
    "black hole": FaultProxy.drop_data,
    "slow": slow_down,
    "no DNS": break_dns,
}


@pytest.fixture
def named_proxy(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> FaultProxy:
    """The proxy under a host name that the test resolves instead of DNS."""
    resolve = socket.getaddrinfo

    def resolve_name(host: Any, *more_args: Any, **kwargs: Any) -> Any:
        if host != "api.torchyard.test":
            return resolve(host, *more_args, **kwargs)
        if proxy.is_unresolvable:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return resolve("127.0.0.1", *more_args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_name)
    content = proxy.kubeconfig.read_text()
    proxy.kubeconfig.write_text(content.replace("127.0.0.1", "api.torchyard.test"))
    return proxy


@pytest.fixture(params=FAULTS)
def fault(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Fault:
    """A fault, with timeouts of seconds instead of minutes for silent connections."""
    monkeypatch.setattr(reflector, "WATCH_IDLE_TIMEOUT_S", 8.0)
    monkeypatch.setattr(http, "READ_TIMEOUT_S", 8.0)
    return FAULTS[request.param]


def test_wait_sees_the_end_after_a_fault(fault: Fault, jobs: Jobs, named_proxy: FaultProxy) -> None:
    """If a job ends during an outage of any kind, the watch has its end after the outage."""
    plan = jobs.start(named_proxy)
    with ClusterWatch(plan) as watch:
        until(lambda: is_running(watch))
        fault(named_proxy)
        jobs.end(plan)
        time.sleep(2)
        named_proxy.repair()
        until(lambda: has_ended(watch))


# Only a watch can get a 410.
@pytest.mark.parametrize("fault", sorted(set(FAULTS) - {"410"}), indirect=True)
def test_object_is_created_once_despite_a_fault(fault: Fault, jobs: Jobs, named_proxy: FaultProxy) -> None:
    """An object that is created during an outage of any kind exists exactly once after it."""
    client = Client(Cluster(context=CONTEXT, namespace=jobs.namespace))
    assert client.list("v1", "ConfigMap")
    fault(named_proxy)
    threading.Timer(2, named_proxy.repair).start()
    metadata = {"generateName": "fault-", "labels": {"torchyard.test/port": str(named_proxy.port)}}
    created = client.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    objects = jobs.client.list("v1", "ConfigMap", {"labelSelector": f"torchyard.test/port={named_proxy.port}"})
    assert [obj["metadata"]["uid"] for obj in objects] == [created["metadata"]["uid"]]


# --- errors that are not retried, or not for long


def test_busy_server_is_given_up(jobs: Jobs, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a server is busy for too long, the error has its last status and message."""
    monkeypatch.setattr(retry, "REQUEST_TIMEOUT_S", 1.0)
    respond_with(503)(proxy)
    with pytest.raises(ClusterError, match="injected") as caught:
        Client(Cluster(context=CONTEXT, namespace=jobs.namespace)).list("v1", "Pod")
    assert caught.value.status == 503


def test_retry_after_is_respected(jobs: Jobs, proxy: FaultProxy) -> None:
    """A request is not repeated before the time in the server's Retry-After."""
    client = Client(Cluster(context=CONTEXT, namespace=jobs.namespace))
    proxy.respond("/pods", 429, {"message": "too many requests"}, Retry_After="2")
    started_at = time.monotonic()
    client.list("v1", "Pod")
    assert (time.monotonic() - started_at >= 2, proxy.count_requests("/pods")) == (True, 2)


@pytest.mark.parametrize("substring", ["/jobs?", "/pods?"])
def test_job_that_may_not_be_listed_is_not_taken_for_deleted(jobs: Jobs, proxy: FaultProxy, substring: str) -> None:
    """If the first list of the job or its pods is refused, the watch raises that error."""
    plan = jobs.start(proxy)
    proxy.respond(substring, 403, {"kind": "Status", "message": "injected"}, times=1000)
    with pytest.raises(ClusterError, match="injected"), ClusterWatch(plan):
        pass


# --- absence


HIDDEN_NAMESPACE = {
    "kind": "Status",
    "apiVersion": "v1",
    "status": "Failure",
    "reason": "NotFound",
    "message": "the namespace is hidden",
    "details": {"name": "hidden", "kind": "namespaces"},
    "code": 404,
}
EMPTY_LIST = {"kind": "JobList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}


@pytest.mark.parametrize(
    ("substring", "body"),
    [("", b"default backend - 404"), ("", {"kind": "Status", "code": 404}), ("/namespaces/", HIDDEN_NAMESPACE)],
    ids=["a load balancer's page", "a Status without a reason", "a hidden namespace"],
)
@pytest.mark.parametrize("is_attached", [True, False], ids=["running", "attach"])
def test_404_of_something_else_is_an_outage(
    jobs: Jobs, proxy: FaultProxy, substring: str, body: Any, is_attached: bool
) -> None:
    """While a proxy answers 404, also for discovery, nothing is known to be gone, by an old watch or a new one."""
    plan = jobs.start(proxy)

    def hide() -> None:
        proxy.respond(substring, 404, body, times=1000)
        proxy.cut()

    if not is_attached:
        hide()
        threading.Timer(6.0, proxy.repair).start()
    with ClusterWatch(plan) as watch:
        until(lambda: is_running(watch))
        if is_attached:
            hide()
            until(watch.is_disconnected)
            run_for(watch, 6.0)
            assert read_kinds(watch) >= {"Job", "Pod"}
            proxy.repair()
        until(lambda: not watch.is_disconnected())
        assert read_kinds(watch) >= {"Job", "Pod"}


@pytest.mark.parametrize("is_attached", [True, False], ids=["running", "attach"])
def test_empty_list_is_not_a_deletion(jobs: Jobs, proxy: FaultProxy, is_attached: bool) -> None:
    """A job that one list lacks exists, because it is read by name."""
    plan = jobs.start(proxy)
    if not is_attached:
        proxy.respond("/jobs?", 200, EMPTY_LIST)
    with ClusterWatch(plan) as watch:
        until(lambda: is_running(watch))
        if is_attached:
            proxy.respond("/jobs?", 503, {"kind": "Status"})
            proxy.cut("/jobs?")
            until(watch.is_disconnected)
            proxy.respond("/jobs?", 200, EMPTY_LIST)
            run_for(watch, 6.0)
        assert "Job" in read_kinds(watch)


def run_for(watch: ClusterWatch, duration_s: float) -> None:
    """Poll a watch for a while."""
    deadline = time.monotonic() + duration_s
    while time.monotonic() < deadline:
        watch.poll(timeout_s=0.05)


# --- the messages in a run's log


@pytest.fixture
def read_messages(caplog: pytest.LogCaptureFixture) -> ReadMessages:
    """A function that polls a watch and returns everything logged so far."""
    caplog.set_level(logging.INFO, logger="torchyard")

    def poll(watch: ClusterWatch) -> list[str]:
        watch.poll(timeout_s=0.05)
        return [record.getMessage() for record in caplog.records if record.name == "torchyard"]

    return poll


@pytest.mark.parametrize("status", [401, 403])
def test_refusal_is_logged_once_and_waited_out(
    jobs: Jobs, proxy: FaultProxy, read_messages: ReadMessages, status: int
) -> None:
    """A right that is lost while a job runs is logged once, and its return once.

    The watch keeps the job's last state.
    """
    plan = jobs.start(proxy)
    with ClusterWatch(plan) as watch:
        until(lambda: is_running(watch))
        proxy.respond("/jobs?", status, {"kind": "Status", "message": "no such right"}, times=1000)
        proxy.cut("/jobs?")
        until(lambda: len(read_messages(watch)) == 1, timeout_s=5)
        time.sleep(2)
        assert (read_kinds(watch) >= {"Job", "Pod"}, watch.is_disconnected()) == (True, True)
        proxy.repair()
        until(lambda: len(read_messages(watch)) == 2)
        assert "refuses to show the job: no such right" in read_messages(watch)[0]


def test_outage_is_logged_once(
    jobs: Jobs, proxy: FaultProxy, read_messages: ReadMessages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long outage is logged once with its reason, and its end once."""
    monkeypatch.setattr(outage, "REPORT_AFTER_S", 1.0)
    plan = jobs.start(proxy)
    with ClusterWatch(plan) as watch:
        until(lambda: is_running(watch))
        proxy.refuse()
        until(lambda: len(read_messages(watch)) == 1)
        time.sleep(1)
        proxy.repair()
        until(lambda: len(read_messages(watch)) == 2)
        assert "Connection refused. The job keeps running; still waiting for the API server" in read_messages(watch)[0]


def test_short_outage_is_not_logged(jobs: Jobs, proxy: FaultProxy, read_messages: ReadMessages) -> None:
    """A connection that breaks and is soon open again is not logged."""
    plan = jobs.start(proxy)
    with ClusterWatch(plan) as watch:
        until(lambda: is_running(watch))
        take_down(proxy)
        until(lambda: read_messages(watch) or watch.is_disconnected())
        proxy.repair()
        until(lambda: not watch.is_disconnected())
        assert read_messages(watch) == []


def test_server_that_has_just_started_is_not_believed(jobs: Jobs, proxy: FaultProxy) -> None:
    """A 403 from an API server whose /readyz fails is retried: it has not loaded its access rules yet."""
    client = Client(Cluster(context=CONTEXT, namespace=jobs.namespace))
    proxy.respond("/pods", 403, {"kind": "Status", "message": "forbidden"}, times=2)
    proxy.respond("/readyz", 500, b"[-]informer-sync failed", times=2)
    client.list("v1", "Pod")
    assert proxy.count_requests("/pods") == 3


def test_first_refusal_is_not_believed(jobs: Jobs, proxy: FaultProxy) -> None:
    """A first 403 is retried once, because the server may have become ready between it and the check of /readyz."""
    client = Client(Cluster(context=CONTEXT, namespace=jobs.namespace))
    proxy.respond("/pods", 403, {"kind": "Status", "message": "forbidden"})
    client.list("v1", "Pod")
    assert proxy.count_requests("/pods") == 2


# --- without a visible fault


def test_resync_corrects_a_wrong_watch(jobs: Jobs, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the watch never reports a job's deletion, the next full list does; there is one every few minutes."""
    monkeypatch.setattr(reflector, "RESYNC_RANGE_S", (6.0, 6.0))
    plan = jobs.start(proxy)
    with ClusterWatch(plan) as watch:
        until(lambda: is_running(watch))
        proxy.stall("watch=1")
        jobs.delete(plan)
        monkeypatch.setattr(reflector, "WATCH_IDLE_TIMEOUT_S", 2.0)
        proxy.cut("watch=1")
        until(lambda: read_kinds(watch) == set())


def test_waiting_costs_few_requests(jobs: Jobs, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind costs one list and one watch per resync: with the default range fewer than two requests a minute."""
    monkeypatch.setattr(reflector, "RESYNC_RANGE_S", (5.0, 5.0))
    plan = jobs.start(proxy)
    with ClusterWatch(plan) as watch:
        until(lambda: is_running(watch))
        requests_before = proxy.count_requests("/jobs?")
        time.sleep(11)
        assert 2 <= proxy.count_requests("/jobs?") - requests_before <= 6
