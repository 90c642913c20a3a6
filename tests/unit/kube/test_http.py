"""One request and its response: retries, the server's own error message, its clock, and lines."""

import io
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import pytest
import urllib3

from tests.doubles.fake_api import FakeApi
from torchyard.host.identity import read_uptime
from torchyard.kube import http, retry
from torchyard.kube.client import Client
from torchyard.kube.http import ServerClock, discard_list, split_lines
from torchyard.model.errors import ClusterError

CONFIG: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}}


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 0])
def test_request_to_a_busy_server_is_repeated(fake_api: FakeApi, fake_server: Client, status: int) -> None:
    """A request is repeated after a `try later`, a broken back end or a connection reset, until it succeeds."""
    fake_api.fail("GET", "/configmaps", status, times=2)
    assert fake_server.list("v1", "ConfigMap") == []
    assert len(fake_api.find_requests("GET", "/configmaps")) == 3


@pytest.mark.parametrize("status", [400, 405, 409, 422])
def test_refusal_is_raised_at_once(fake_api: FakeApi, fake_server: Client, status: int) -> None:
    """A permanent refusal is raised with the server's message and status, after one request."""
    fake_api.fail("POST", "/configmaps", status)
    with pytest.raises(ClusterError, match=f"a fault of the test: {status}") as caught:
        fake_server.create(CONFIG)
    assert caught.value.status == status
    assert len(fake_api.find_requests("POST", "/configmaps")) == 1


FOREIGN_RESPONSES = [
    (302, b""),  # the redirect of a load balancer to a login page
    (301, {"kind": "Status"}),
    (200, b""),
    (200, b"<html>back soon</html>"),
    (200, b"[]"),
    (200, {}),
    (200, {"status": "ok"}),
]


@pytest.mark.parametrize(("status", "body"), FOREIGN_RESPONSES)
@pytest.mark.parametrize("verb", ["get", "list", "create", "patch", "delete", "delete_collection"])
def test_response_that_no_api_server_gives_is_repeated(
    fake_api: FakeApi, fake_server: Client, verb: str, status: int, body: Any
) -> None:
    """A redirect, and a success without an object that has a kind, is the response of a proxy: it counts as none."""
    config_map = fake_api.put(CONFIG)
    calls: dict[str, Callable[[], Any]] = {
        "get": lambda: fake_server.get("v1", "ConfigMap", "one"),
        "list": lambda: fake_server.list("v1", "ConfigMap")[0],
        "create": lambda: fake_server.create(CONFIG | {"metadata": {"name": "two"}}),
        "patch": lambda: fake_server.patch(config_map, {"data": {"a": "1"}}),
        "delete": lambda: fake_server.delete(config_map),
        "delete_collection": lambda: fake_server.delete_collection("v1", "ConfigMap", {}, lambda: None),
    }
    for method in ("GET", "POST", "PATCH", "DELETE"):
        fake_api.answer(method, "/configmaps", status, body, times=1)
    result = calls[verb]()
    assert len(fake_api.received) == 2
    assert result in (True, None) or result["metadata"]["uid"]


@pytest.mark.parametrize("verb", ["get", "list"])
def test_response_that_is_nested_too_deeply_is_repeated(fake_api: FakeApi, fake_server: Client, verb: str) -> None:
    """A body with more levels than a parser can read is not an API server's: it is no error of this process."""
    fake_api.put(CONFIG)
    fake_api.answer("GET", "/configmaps", 200, b'{"kind": ' + b"[" * 100_000, times=1)
    result = fake_server.get("v1", "ConfigMap", "one") if verb == "get" else fake_server.list("v1", "ConfigMap")[0]
    assert result
    assert result["metadata"]["uid"]


def test_persistent_response_of_a_proxy_is_a_transient_error(
    fake_api: FakeApi, fake_server: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A redirect that persists proves nothing: the error names it, and a step that it prevents is repeated."""
    monkeypatch.setattr(retry, "REQUEST_TIMEOUT_S", 0.1)
    fake_api.answer("GET", "/configmaps", 302, b"")
    with pytest.raises(ClusterError, match="not that of an API server: status 302") as caught:
        fake_server.get("v1", "ConfigMap", "one")
    assert caught.value.is_transient


def test_large_response_to_a_deletion_is_not_kept() -> None:
    """The response to the deletion of a collection is read to its end, and only its start is checked."""
    pods = b'{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[' + b"x" * 1_000_000
    response = urllib3.HTTPResponse(io.BytesIO(pods), preload_content=False)
    discard_list(response)
    assert response.read() == b""


def test_clock_is_the_servers() -> None:
    """The time is that of the last response's Date; a missing or malformed Date changes nothing."""
    clock = ServerClock()
    for date in (formatdate(time.time() + 3600, usegmt=True), None, "tomorrow"):
        clock.update(date)
        assert clock.now() - time.time() == pytest.approx(3600, abs=2)


def test_clock_does_not_jump_by_the_duration_of_a_response() -> None:
    """Dates that differ by less than the duration of a response leave the clock as it is."""
    clock = ServerClock()
    clock.update(formatdate(time.time() - 1, usegmt=True))
    assert clock.now() == pytest.approx(time.time(), abs=0.5)


def test_clock_does_not_follow_a_correction_of_the_machines_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a response the time advances with the clock since boot: a corrected wall clock changes nothing."""
    clock = ServerClock()
    server_time = time.time() + 3600
    clock.update(formatdate(server_time, usegmt=True))
    monkeypatch.setattr(time, "time", lambda: server_time + 86400)
    assert clock.now() == pytest.approx(server_time, abs=2)


def test_clock_counts_a_suspend_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is right on a machine that was suspended for an hour, also before the next response."""
    clock = ServerClock()
    clock.update(formatdate(time.time(), usegmt=True))
    resumed_at = time.time() + 3600
    monkeypatch.setattr(http, "read_uptime", lambda: read_uptime() + 3600)
    assert clock.now() == pytest.approx(resumed_at, abs=2)
    clock.update(formatdate(resumed_at, usegmt=True))
    assert clock.now() == pytest.approx(resumed_at, abs=2)


@pytest.mark.parametrize("text", [b"one\n\ntwo\nrest", b"one\n", b"\n", b"", b"x" * 100_000 + b"\nrest"])
def test_lines_of_a_response_are_complete(text: bytes) -> None:
    """Every line comes with its line end, however long it is; only the last one may lack it."""
    response = urllib3.HTTPResponse(io.BytesIO(text), preload_content=False)
    assert list(split_lines(response)) == text.splitlines(keepends=True)
