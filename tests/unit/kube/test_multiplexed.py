"""Many open responses over few HTTP/2 connections: their order, flow control, faults, and servers without HTTP/2."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.doubles.http2_server import MAX_STREAMS, Http2Server, serve_http2
from torchyard.kube import multiplexed
from torchyard.kube.multiplexed import MultiplexedTransport

Scene = Callable[[Http2Server, httpx.AsyncClient], Coroutine[Any, Any, None]]


def play(scene: Scene, protocol: str = "h2", *, timeout_s: float = 20.0) -> None:
    """Run a scene with a server and a client of it."""

    async def run() -> None:
        async with serve_http2(protocol) as server, open_client(server) as client, asyncio.timeout(timeout_s):
            await scene(server, client)

    asyncio.run(run())


@asynccontextmanager
async def open_client(server: Http2Server) -> AsyncIterator[httpx.AsyncClient]:
    context = ssl.create_default_context(cadata=server.authority)
    fallback = httpx.AsyncHTTPTransport(verify=ssl.create_default_context(cadata=server.authority))
    transport = MultiplexedTransport(context, fallback, None)
    async with httpx.AsyncClient(transport=transport, base_url=server.url, timeout=10) as client:
        yield client


async def open_response(client: httpx.AsyncClient, path: str = "/log") -> httpx.Response:
    return await client.send(client.build_request("GET", path), stream=True)


async def read_bytes(response: httpx.Response, size: int) -> None:
    """Read exactly so many bytes of a response that stays open."""
    async for chunk in response.aiter_raw():
        size -= len(chunk)
        if size <= 0:
            break
    assert size == 0


def test_open_responses_share_connections() -> None:
    """250 responses that stay open use three connections, and each gets its own chunk while all others are idle."""

    async def scene(server: Http2Server, client: httpx.AsyncClient) -> None:
        opened = [await open_response(client, f"/{number}") for number in range(2 * MAX_STREAMS + 50)]
        assert len(server.connections) == 3
        served = {response.path: response for response in [server.responses.get_nowait() for _ in opened]}
        for number in (249, 3, 120):
            await served[f"/{number}"].send(f"chunk {number}\n".encode())
            assert await anext(opened[number].aiter_raw()) == f"chunk {number}\n".encode()

    play(scene)


def test_unread_response_delays_no_other() -> None:
    """A response that nobody reads stops at its window of 64 KiB, and another of the same connection goes on."""

    async def scene(server: Http2Server, client: httpx.AsyncClient) -> None:
        slow = await open_response(client, "/slow")
        fast = await open_response(client, "/fast")
        slow_response, fast_response = [await server.responses.get() for _ in range(2)]
        sending = asyncio.create_task(slow_response.send(b"s" * 10**6))
        fast_sending = asyncio.create_task(fast_response.send(b"f" * 10**6))
        await read_bytes(fast, 10**6)
        await fast_sending
        assert not sending.done()
        await read_bytes(slow, 10**6)
        await sending

    play(scene)


def test_end_and_early_close() -> None:
    """A response ends where the server ends it; one that is closed earlier is reset, and its connection is used on."""

    async def scene(server: Http2Server, client: httpx.AsyncClient) -> None:
        complete = await open_response(client)
        response = await server.responses.get()
        await response.send(b"all")
        response.end()
        assert await complete.aread() == b"all"

        closed = await open_response(client)
        response = await server.responses.get()
        await closed.aclose()
        await open_response(client)
        assert response.was_reset
        assert len(server.connections) == 1

    play(scene)


@pytest.mark.parametrize("fault", ["close", "go_away"])
def test_lost_connection_ends_its_responses(fault: str) -> None:
    """Responses of a lost connection end with an error after what has arrived; the next request opens a new
    connection."""

    async def scene(server: Http2Server, client: httpx.AsyncClient) -> None:
        opened = [await open_response(client) for _ in range(2)]
        chunks = [response.aiter_raw() for response in opened]
        for iterator in chunks:
            await (await server.responses.get()).send(b"line\n")
            assert await anext(iterator) == b"line\n"
        getattr(server.connections[0], fault)()
        for iterator in chunks:
            with pytest.raises(httpx.TransportError):
                await anext(iterator)
        await open_response(client)
        assert len(server.connections) == 2

    play(scene)


def test_silent_connection_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection over which nothing comes any more is tested with a ping, and ends if there is no answer."""
    monkeypatch.setattr(multiplexed, "_PING_AFTER_S", 0.1)
    monkeypatch.setattr(multiplexed, "_PING_TIMEOUT_S", 0.3)

    async def scene(server: Http2Server, client: httpx.AsyncClient) -> None:
        opened = await open_response(client)
        response = await server.responses.get()
        iterator = opened.aiter_raw()
        await asyncio.sleep(0.5)  # several pings that are answered
        await response.send(b"alive")
        assert await anext(iterator) == b"alive"
        server.connections[0].is_silent = True
        with pytest.raises(httpx.ReadTimeout, match="ping"):
            await anext(iterator)

    play(scene)


def test_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection without an open response is closed after a while, and the next request opens another."""
    monkeypatch.setattr(multiplexed, "_PING_AFTER_S", 0.1)

    async def scene(server: Http2Server, client: httpx.AsyncClient) -> None:
        opened = await open_response(client)
        (await server.responses.get()).end()
        await opened.aread()
        while not server.connections[0].has_closed:
            await asyncio.sleep(0.01)
        await open_response(client)
        assert len(server.connections) == 2

    play(scene)


def test_response_has_a_read_timeout() -> None:
    """A response from which nothing arrives ends with the read timeout of its request; others stay open."""

    async def scene(server: Http2Server, client: httpx.AsyncClient) -> None:
        other = await open_response(client)
        request = client.build_request("GET", "/", timeout=httpx.Timeout(10, read=0.1))
        opened = await client.send(request, stream=True)
        with pytest.raises(httpx.ReadTimeout):
            await anext(opened.aiter_raw())
        await (await server.responses.get()).send(b"line")
        assert await anext(other.aiter_raw()) == b"line"

    play(scene)


def test_server_without_http2() -> None:
    """A server that speaks only HTTP/1.1 is asked in HTTP/1.1."""

    async def scene(server: Http2Server, client: httpx.AsyncClient) -> None:
        for _ in range(2):
            response = await client.get("/log")
            assert (response.text, response.http_version) == ("old", "HTTP/1.1")

    play(scene, "http/1.1")


def test_upgrade_is_a_connection_of_its_own() -> None:
    """A request that upgrades its connection is sent with HTTP/1.1, which alone can do that."""

    async def scene(server: Http2Server, _: httpx.AsyncClient) -> None:
        fallback = httpx.MockTransport(lambda _: httpx.Response(101))
        transport = MultiplexedTransport(ssl.create_default_context(cadata=server.authority), fallback, None)
        async with httpx.AsyncClient(transport=transport, base_url=server.url) as client:
            response = await client.get("/exec", headers={"Upgrade": "websocket"})
        assert (response.status_code, server.connections) == (101, [])

    play(scene)


def test_unreachable_server() -> None:
    """A server that refuses connections, or whose certificate is of an unknown authority, is a connect error."""

    async def scene(server: Http2Server, client: httpx.AsyncClient) -> None:
        with pytest.raises(httpx.ConnectError):
            await client.get("https://127.0.0.1:9/")
        stranger = MultiplexedTransport(ssl.create_default_context(), httpx.AsyncHTTPTransport(), None)
        async with httpx.AsyncClient(transport=stranger, base_url=server.url) as other_client:
            with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
                await other_client.get("/log")

    play(scene)
