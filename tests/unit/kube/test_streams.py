"""Responses that are read in chunks on an event loop: their chunks, refusals, faults and credentials."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
import yaml

from tests.doubles.fake_api import FakeApi
from torchyard.kube.client import Client
from torchyard.kube.retry import TransientError
from torchyard.kube.streams import StreamClient
from torchyard.model.errors import ClusterError

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train"}}


def read_log(client: Client, *, idle_timeout_s: float = 10.0, count: int = 10**6) -> bytes:
    """The first chunks of the log of the pod `train`."""

    async def read() -> bytes:
        chunks = []
        stream = StreamClient(client.credentials).stream_chunks(
            f"{client.path('v1', 'Pod', 'train')}/log", {"container": "main"}, idle_timeout_s
        )
        async for chunk in stream:
            chunks.append(chunk)
            if len(chunks) == count:
                await stream.aclose()
                break
        return b"".join(chunks)

    return asyncio.run(read())


@pytest.fixture(autouse=True)
def pod(fake_api: FakeApi) -> None:
    fake_api.put(POD)


def test_chunks_come_as_they_are_sent(fake_api: FakeApi, fake_server: Client) -> None:
    """A chunk is delivered although the response has not ended, and closing the stream ends the response."""
    may_end = threading.Event()

    def stream() -> Iterator[bytes]:
        yield b"one\n"
        may_end.wait(10)
        yield b"two\n"

    fake_api.logs["train"] = stream
    assert read_log(fake_server, count=1) == b"one\n"
    may_end.set()
    assert read_log(fake_server) == b"one\ntwo\n"
    (request, _) = fake_api.find_requests("GET", "/log")
    assert request.query == {"container": "main"}


def test_refusal_has_the_servers_message(fake_api: FakeApi, fake_server: Client) -> None:
    """A refusal is a ClusterError with the server's message; that of a busy server is transient."""
    fake_api.fail("GET", "/log", 400, times=1)
    with pytest.raises(ClusterError, match="a fault of the test: 400"):
        read_log(fake_server)
    fake_api.fail("GET", "/log", 503, times=1)
    with pytest.raises(TransientError, match="a fault of the test: 503"):
        read_log(fake_server)


def test_redirect_is_not_a_log(fake_api: FakeApi, fake_server: Client) -> None:
    """A redirect, such as that of a proxy to its login page, is a transient fault, not the content of a log."""
    fake_api.answer("GET", "/log", 302, b"<a>log in</a>")
    with pytest.raises(TransientError, match="status 302"):
        read_log(fake_server)


def test_broken_connection_is_transient(fake_api: FakeApi, fake_server: Client) -> None:
    """A server that closes the connection, is silent for too long, or is away is a transient fault with a reason."""
    fake_api.fail("GET", "/log", 0, times=1)
    with pytest.raises(TransientError, match=r"."):
        read_log(fake_server)

    def stream() -> Iterator[bytes]:
        yield b"one\n"
        threading.Event().wait(3)

    fake_api.logs["train"] = stream
    with pytest.raises(TransientError, match="ReadTimeout"):
        read_log(fake_server, idle_timeout_s=0.2)
    fake_api.close()
    with pytest.raises(TransientError, match="connect"):
        read_log(fake_server)


def test_expired_token_is_reloaded(fake_api: FakeApi, fake_server: Client) -> None:
    """After a 401 the kubeconfig is read again, and the request is sent with the new token."""
    document = yaml.safe_load(fake_api.kubeconfig.read_text())
    document["users"][0]["user"]["token"] = "renewed"
    fake_api.kubeconfig.write_text(yaml.safe_dump(document))
    fake_api.logs["train"] = b"one\n"
    fake_api.fail("GET", "/log", 401, times=1)
    assert read_log(fake_server) == b"one\n"


def test_refusal_of_a_server_that_has_just_started_is_transient(fake_api: FakeApi, fake_server: Client) -> None:
    """A 403 of a server that refuses /readyz and discovery too does not count."""
    fake_api.fail("GET", "/log|/readyz|/apis$", 403)
    with pytest.raises(TransientError, match="the server is not ready"):
        read_log(fake_server)
