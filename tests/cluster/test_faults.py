"""Every fault of the connection to the API server, once during a wait and once during a single request."""

import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.jobs import Jobs, until
from tests.cluster.test_watch import ended, run, there
from tests.cluster.wire import CONTEXT, Wire
from torchyard.cluster import outage, reflector
from torchyard.cluster.job_watch import ClusterWatch
from torchyard.kube import http, retry
from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError
from torchyard.model.profile import Cluster

GONE = {"kind": "Status", "status": "Failure", "message": "too old resource version", "reason": "Expired", "code": 410}
Fault = Callable[[Wire], None]
Told = Callable[[ClusterWatch], list[str]]


def answered(status: int, times: int = 1000, **headers: str) -> Fault:
    """A fault: requests get this answer, until the wire is mended."""

    def begin(wire: Wire) -> None:
        wire.answer("", status, {"kind": "Status", "message": "told", "code": status}, times, **headers)
        wire.cut()

    return begin


def slow(wire: Wire) -> None:
    wire.delay = 5.0
    wire.cut()


def nameless(wire: Wire) -> None:
    """A fault: DNS does not resolve the API server's name, until the wire is mended."""
    wire.nameless = True
    wire.cut()


def away(wire: Wire) -> None:
    wire.away = True
    wire.cut()


FAULTS = {
    "500": answered(500),
    "502": answered(502),
    "503": answered(503),
    "504": answered(504),
    "429 with Retry-After": answered(429, Retry_After="1"),
    "401 once": answered(401, times=1),
    "410": answered(410),
    "connections reset": Wire.reset,
    "connections closed": away,
    "nobody listens": Wire.refuse,
    "black hole": Wire.swallow,
    "slow": slow,
    "no DNS": nameless,
}


@pytest.fixture
def named(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> Wire:
    """The wire under a host name that the test resolves instead of DNS."""
    resolve = socket.getaddrinfo

    def answer(host: Any, *more: Any, **named: Any) -> Any:
        if host != "api.torchyard.test":
            return resolve(host, *more, **named)
        if wire.nameless:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return resolve("127.0.0.1", *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    text = wire.kubeconfig.read_text()
    wire.kubeconfig.write_text(text.replace("127.0.0.1", "api.torchyard.test"))
    return wire


@pytest.fixture(params=FAULTS)
def fault(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Fault:
    """A fault, with timeouts of seconds instead of minutes for silent connections."""
    monkeypatch.setattr(reflector, "_WATCH_IDLE_TIMEOUT_S", 8.0)
    monkeypatch.setattr(http, "_READ_TIMEOUT_S", 8.0)
    return FAULTS[request.param]


def test_wait_sees_the_end_although(fault: Fault, jobs: Jobs, named: Wire) -> None:
    """If a job ends during an outage of any kind, its end is seen after the outage."""
    plan = jobs.start(named)
    with ClusterWatch(plan) as watch:
        until(lambda: run(watch))
        fault(named)
        jobs.end(plan)
        time.sleep(2)
        named.mend()
        until(lambda: ended(watch))


# Only a watch can get a 410.
@pytest.mark.parametrize("fault", sorted(set(FAULTS) - {"410"}), indirect=True)
def test_step_is_done_although(fault: Fault, jobs: Jobs, named: Wire) -> None:
    """An object that is created during an outage of any kind exists exactly once."""
    server = Client(Cluster(context=CONTEXT, namespace=jobs.namespace))
    assert server.list("v1", "ConfigMap")
    fault(named)
    threading.Timer(2, named.mend).start()
    about = {"generateName": "fault-", "labels": {"torchyard.test/port": str(named.port)}}
    made = server.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": about})
    found = jobs.server.list("v1", "ConfigMap", {"labelSelector": f"torchyard.test/port={named.port}"})
    assert [each["metadata"]["uid"] for each in found] == [made["metadata"]["uid"]]


# --- what is not waited for


def test_patience_ends(jobs: Jobs, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a server is busy for too long, the error has its last status and message."""
    monkeypatch.setattr(retry, "_REQUEST_TIMEOUT_S", 1.0)
    answered(503)(wire)
    with pytest.raises(ClusterError, match="told") as caught:
        Client(Cluster(context=CONTEXT, namespace=jobs.namespace)).list("v1", "Pod")
    assert caught.value.status == 503


def test_server_is_left_alone_for_as_long_as_it_asks(jobs: Jobs, wire: Wire) -> None:
    """A request is not repeated before the time in the server's Retry-After."""
    server = Client(Cluster(context=CONTEXT, namespace=jobs.namespace))
    wire.answer("/pods", 429, {"message": "too many requests"}, Retry_After="2")
    began = time.monotonic()
    server.list("v1", "Pod")
    assert (time.monotonic() - began >= 2, wire.count("/pods")) == (True, 2)


@pytest.mark.parametrize(("what", "status"), [("/jobs?", 403), ("/pods?", 403), ("/batch.volcano.sh/", 404)])
def test_job_that_may_not_be_seen_is_not_taken_for_deleted(jobs: Jobs, wire: Wire, what: str, status: int) -> None:
    """If the first list of the job or its pods is refused, or their kind is unknown, the watch raises that error."""
    plan = jobs.start(wire)
    wire.answer(what, status, {"kind": "Status", "message": "told"}, times=1000)
    with pytest.raises(ClusterError, match="told"), ClusterWatch(plan):
        pass


# --- what a run's log says


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    """Polls a watch and returns everything logged so far."""
    caplog.set_level(logging.INFO, logger="torchyard")

    def look(watch: ClusterWatch) -> list[str]:
        watch.poll(0.05)
        return [record.getMessage() for record in caplog.records if record.name == "torchyard"]

    return look


@pytest.mark.parametrize("status", [401, 403, 404])
def test_refusal_is_told_once_and_waited_out(jobs: Jobs, wire: Wire, told: Told, status: int) -> None:
    """Rights that are lost while a job runs are logged once, and so is their return; the job stays known."""
    plan = jobs.start(wire)
    with ClusterWatch(plan) as watch:
        until(lambda: run(watch))
        wire.answer("/jobs?", status, {"kind": "Status", "message": "no such right"}, times=1000)
        wire.cut("/jobs?")
        until(lambda: len(told(watch)) == 1, 5)
        time.sleep(2)
        assert (there(watch) >= {"Job", "Pod"}, watch.is_disconnected()) == (True, True)
        wire.mend()
        until(lambda: len(told(watch)) == 2)
        assert "refuses to show the job: no such right" in told(watch)[0]


def test_outage_is_told_once(jobs: Jobs, wire: Wire, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long outage is logged once with its reason, and its end once."""
    monkeypatch.setattr(outage, "_REPORT_AFTER_S", 1.0)
    plan = jobs.start(wire)
    with ClusterWatch(plan) as watch:
        until(lambda: run(watch))
        wire.refuse()
        until(lambda: len(told(watch)) == 1)
        time.sleep(1)
        wire.mend()
        until(lambda: len(told(watch)) == 2)
        assert "Connection refused. The job keeps running; still waiting for the API server" in told(watch)[0]


def test_short_outage_is_not_told(jobs: Jobs, wire: Wire, told: Told) -> None:
    """A connection that breaks and is soon made again is not logged."""
    plan = jobs.start(wire)
    with ClusterWatch(plan) as watch:
        until(lambda: run(watch))
        away(wire)
        until(lambda: told(watch) or watch.is_disconnected())
        wire.mend()
        until(lambda: not watch.is_disconnected())
        assert told(watch) == []


def test_kind_that_is_served_no_more_has_no_job(jobs: Jobs, wire: Wire) -> None:
    """If discovery and a list both say that a kind no longer exists, its objects are gone too."""
    plan = jobs.start(wire)
    with ClusterWatch(plan) as watch:
        until(lambda: run(watch))
        wire.answer("/batch.volcano.sh/v1alpha1", 404, {"kind": "Status"}, times=1000)
        wire.cut("/jobs?")
        until(lambda: "Job" not in there(watch))


def test_server_that_has_just_started_is_not_believed(jobs: Jobs, wire: Wire) -> None:
    """A 403 from an API server whose /readyz fails is retried: it has not loaded its access rules yet."""
    server = Client(Cluster(context=CONTEXT, namespace=jobs.namespace))
    wire.answer("/pods", 403, {"kind": "Status", "message": "forbidden"}, times=2)
    wire.answer("/readyz", 500, b"[-]informer-sync failed", times=2)
    server.list("v1", "Pod")
    assert wire.count("/pods") == 3


def test_first_refusal_is_not_believed(jobs: Jobs, wire: Wire) -> None:
    """A first 403 is retried once, because the server may have become ready between it and the check of /readyz."""
    server = Client(Cluster(context=CONTEXT, namespace=jobs.namespace))
    wire.answer("/pods", 403, {"kind": "Status", "message": "forbidden"})
    server.list("v1", "Pod")
    assert wire.count("/pods") == 2


# --- without a visible fault


def test_watch_that_lied_is_found_out(jobs: Jobs, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the watch never shows a job's deletion, the next full list does, every few minutes."""
    monkeypatch.setattr(reflector, "_RESYNC_RANGE_S", (6.0, 6.0))
    plan = jobs.start(wire)
    with ClusterWatch(plan) as watch:
        until(lambda: run(watch))
        wire.stall("watch=1")
        jobs.delete(plan)
        monkeypatch.setattr(reflector, "_WATCH_IDLE_TIMEOUT_S", 2.0)
        wire.cut("watch=1")
        until(lambda: there(watch) == set())


def test_waiting_costs_few_requests(jobs: Jobs, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind costs one list and one watch per resync: with the default range fewer than two requests a minute."""
    monkeypatch.setattr(reflector, "_RESYNC_RANGE_S", (5.0, 5.0))
    plan = jobs.start(wire)
    with ClusterWatch(plan) as watch:
        until(lambda: run(watch))
        before = wire.count("/jobs?")
        time.sleep(11)
        assert 2 <= wire.count("/jobs?") - before <= 6
