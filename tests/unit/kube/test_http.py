"""One request and its response: retries, the server's own error message, its clock, and lines."""

import io
import time
from email.utils import formatdate
from typing import Any

import pytest
import urllib3

from tests.doubles.fake_api import FakeApi
from torchyard.kube.client import Client
from torchyard.kube.http import ServerClock, split_lines
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
    """After a response the time advances with the monotonic clock: a corrected wall clock changes nothing."""
    clock = ServerClock()
    server_time = time.time() + 3600
    clock.update(formatdate(server_time, usegmt=True))
    monkeypatch.setattr(time, "time", lambda: server_time + 86400)
    assert clock.now() == pytest.approx(server_time, abs=2)


@pytest.mark.parametrize("text", [b"one\n\ntwo\nrest", b"one\n", b"\n", b"", b"x" * 100_000 + b"\nrest"])
def test_lines_of_a_response_are_complete(text: bytes) -> None:
    """Every line comes with its line end, however long it is; only the last one may lack it."""
    response = urllib3.HTTPResponse(io.BytesIO(text), preload_content=False)
    assert list(split_lines(response)) == text.splitlines(keepends=True)
