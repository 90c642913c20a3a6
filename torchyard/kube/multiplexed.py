"""An httpx transport that sends many requests at once over few HTTP/2 connections."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Any

import httpx
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)
from h2.exceptions import ProtocolError

_READ_SIZE = 65536  # bytes
_STREAMS_PER_CONNECTION = 100  # at most; a server may allow fewer
_CONNECTION_WINDOW = 2**23  # bytes: more than the windows of all streams, so a slow reader delays no other response
_PING_AFTER_S = 30.0  # without any byte from the server
_PING_TIMEOUT_S = 15.0
_HOP_HEADERS = (b"host", b"connection", b"transfer-encoding", b"keep-alive")  # of HTTP/1.1; HTTP/2 forbids them


class MultiplexedTransport(httpx.AsyncBaseTransport):
    """Send each request as a stream of an HTTP/2 connection; as `fallback` does where the server has only HTTP/1.1.

    A request that upgrades its connection needs HTTP/1.1, and goes to `fallback` as well.

    An open TLS connection costs a third of a MiB, a stream some KiB. httpx's own HTTP/2 does not serve responses that
    stay open: whoever waits for one response reads the connection, and the others wait for their turn.

    It belongs to one event loop. Connections are opened one at a time when all others are full, and are closed when no
    response was open for `_PING_AFTER_S`.
    """

    def __init__(self, ssl_context: ssl.SSLContext, fallback: httpx.AsyncBaseTransport, socket_options: Any) -> None:
        """`ssl_context`: for this transport alone, which sets its ALPN protocols. `socket_options`: setsockopt's."""
        self._ssl_context = ssl_context
        self._ssl_context.set_alpn_protocols(["h2", "http/1.1"])
        self._fallback = fallback
        self._socket_options = socket_options or ()
        self._has_http2 = True  # as far as is known
        self._connections: list[_Connection] = []
        self._opening = asyncio.Lock()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        may_multiplex = self._has_http2 and "upgrade" not in request.headers
        connection = await self._get_connection(request) if may_multiplex else None
        if connection is None:
            return await self._fallback.handle_async_request(request)
        return await connection.send(request)

    async def aclose(self) -> None:
        for connection in self._connections:
            connection.close(httpx.ReadError("the client was closed"))
        await self._fallback.aclose()

    async def _get_connection(self, request: httpx.Request) -> "_Connection | None":
        """A connection with room for one more stream; None if the server does not speak HTTP/2."""
        async with self._opening:
            self._connections = [connection for connection in self._connections if not connection.is_closed]
            for connection in self._connections:
                if connection.has_room:
                    return connection
            if not self._has_http2:  # found out while this request waited
                return None
            new_connection = await self._open_connection(request)
            if new_connection is None:
                self._has_http2 = False
            else:
                self._connections.append(new_connection)
            return new_connection

    async def _open_connection(self, request: httpx.Request) -> "_Connection | None":
        """A new connection to the request's host; None if the server does not choose HTTP/2.

        httpx.ConnectTimeout or httpx.ConnectError if there is none.
        """
        url = request.url
        server_name = request.extensions.get("sni_hostname") or url.host
        try:
            async with asyncio.timeout(_get_timeout_s(request, "connect")):
                reader, writer = await asyncio.open_connection(
                    url.host, url.port or 443, ssl=self._ssl_context, server_hostname=server_name
                )
        except TimeoutError as error:
            raise httpx.ConnectTimeout("no connection in time", request=request) from error
        except OSError as error:
            raise httpx.ConnectError(str(error), request=request) from error
        for option in self._socket_options:
            writer.get_extra_info("socket").setsockopt(*option)
        if writer.get_extra_info("ssl_object").selected_alpn_protocol() != "h2":
            writer.close()
            return None
        connection = _Connection(reader, writer)
        connection.start()
        return connection


class _Connection:
    """One HTTP/2 connection. `_receive` alone reads it and hands what arrives to the streams.

    Memory. A stream holds at most its window of 64 KiB until its reader takes it.

    Errors. A connection that breaks, or from which the server goes away, ends all its streams with the same error. One
    that is silent is tested with a ping, so a connection that died silently is found within a minute.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.is_closed = False
        self._reader = reader
        self._writer = writer
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self._streams: dict[int, _Stream] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def has_room(self) -> bool:
        """Whether the server accepts one more stream."""
        limit = min(_STREAMS_PER_CONNECTION, self._h2.remote_settings.max_concurrent_streams)
        return not self.is_closed and self._h2.open_outbound_streams < limit

    def start(self) -> None:
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_CONNECTION_WINDOW)
        self._flush()
        self._task = asyncio.create_task(self._receive())

    async def send(self, request: httpx.Request) -> httpx.Response:
        """Send a request without a body; return its response with the body unread."""
        read_timeout_s = _get_timeout_s(request, "read")
        headers = [
            (b":method", request.method.encode()),
            (b":authority", request.url.netloc),
            (b":scheme", request.url.raw_scheme),
            (b":path", request.url.raw_path),
        ]
        headers += [(name.lower(), value) for name, value in request.headers.raw if name.lower() not in _HOP_HEADERS]
        try:
            stream_id = self._h2.get_next_available_stream_id()
            self._h2.send_headers(stream_id, headers, end_stream=True)
        except ProtocolError as error:  # the server went away at this moment
            raise httpx.RemoteProtocolError(str(error), request=request) from error
        stream = _Stream(self, stream_id, read_timeout_s)
        self._streams[stream_id] = stream
        self._flush()
        try:
            response_headers = await stream.receive_headers()
        except BaseException:
            await stream.aclose()
            raise
        status = next(int(value) for name, value in response_headers if name == b":status")
        fields = [(name, value) for name, value in response_headers if not name.startswith(b":")]
        return httpx.Response(status, headers=fields, stream=stream, extensions={"http_version": b"HTTP/2"})

    def acknowledge(self, stream_id: int, size: int) -> None:
        """Let the server send as many bytes more."""
        if not self.is_closed:
            with contextlib.suppress(ProtocolError):
                self._h2.acknowledge_received_data(size, stream_id)
            self._flush()

    def end_stream(self, stream_id: int) -> None:
        """Forget a stream; tell the server if it has not ended."""
        stream = self._streams.pop(stream_id, None)
        if stream and not stream.has_ended and not self.is_closed:
            with contextlib.suppress(ProtocolError):
                self._h2.reset_stream(stream_id, ErrorCodes.CANCEL)
            self._flush()

    def close(self, error: httpx.TransportError) -> None:
        """End all streams with an error."""
        if not self.is_closed:
            self.is_closed = True
            if self._task:
                self._task.cancel()
            self._writer.close()
            for stream in self._streams.values():
                stream.fail(error)

    async def _receive(self) -> None:
        """Read until the connection ends."""
        error: httpx.TransportError = httpx.RemoteProtocolError("the server closed the connection")
        try:
            while data := await self._read():
                for event in self._h2.receive_data(data):
                    self._handle(event)
                self._flush()
        except TimeoutError:
            error = httpx.ReadTimeout(f"the server did not answer a ping within {_PING_TIMEOUT_S:.0f} s")
        except (OSError, ProtocolError) as reason:
            error = httpx.ReadError(str(reason) or type(reason).__name__)
        finally:
            self.close(error)

    async def _read(self) -> bytes:
        """The next bytes; none if the server closed the connection, or if it is idle and no response is open.

        TimeoutError if it does not answer a ping.
        """
        try:
            return await asyncio.wait_for(self._reader.read(_READ_SIZE), _PING_AFTER_S)
        except TimeoutError:
            if not self._streams:
                return b""
        self._h2.ping(b"torchyrd")
        self._flush()
        return await asyncio.wait_for(self._reader.read(_READ_SIZE), _PING_TIMEOUT_S)

    def _handle(self, event: Event) -> None:
        if isinstance(event, ConnectionTerminated):
            raise ConnectionError("the server is going away")
        if not isinstance(event, ResponseReceived | DataReceived | StreamEnded | StreamReset):
            return
        stream = self._streams.get(event.stream_id)
        if stream is None:  # its reader has closed it
            return
        if isinstance(event, ResponseReceived):
            stream.put_headers(event.headers)
        elif isinstance(event, DataReceived):
            stream.put_data(event.data, event.flow_controlled_length)
        elif isinstance(event, StreamEnded):
            stream.end()
        else:
            stream.fail(httpx.RemoteProtocolError(f"the server reset the response: error {event.error_code}"))

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and not self.is_closed:
            self._writer.write(data)


class _Stream(httpx.AsyncByteStream):
    """One response, filled by `_Connection._receive` and read by one coroutine."""

    def __init__(self, connection: _Connection, stream_id: int, read_timeout_s: float | None) -> None:
        self.has_ended = False  # as the server sees it
        self._connection = connection
        self._id = stream_id
        self._read_timeout_s = read_timeout_s
        self._headers: list[tuple[bytes, bytes]] | None = None
        self._data = bytearray()
        self._unacknowledged = 0  # bytes that have arrived, padding included
        self._error: httpx.TransportError | None = None
        self._changed = asyncio.Event()

    def put_headers(self, headers: Any) -> None:
        self._headers = list(headers)
        self._changed.set()

    def put_data(self, data: bytes, flow_controlled_length: int) -> None:
        self._data += data
        self._unacknowledged += flow_controlled_length
        self._changed.set()

    def end(self) -> None:
        self.has_ended = True
        self._changed.set()

    def fail(self, error: httpx.TransportError) -> None:
        if not self.has_ended:
            self.has_ended = True
            self._error = error
            self._changed.set()

    async def receive_headers(self) -> list[tuple[bytes, bytes]]:
        while self._headers is None:
            await self._wait()
        return self._headers

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            while not self._data:
                if self.has_ended and self._error is None:
                    return
                await self._wait()
            chunk = bytes(self._data)
            self._data.clear()
            self._connection.acknowledge(self._id, self._unacknowledged)
            self._unacknowledged = 0
            yield chunk

    async def aclose(self) -> None:
        self._connection.acknowledge(self._id, self._unacknowledged)
        self._unacknowledged = 0
        self._connection.end_stream(self._id)

    async def _wait(self) -> None:
        """Wait until something has arrived. Raises the stream's error, or ReadTimeout."""
        if self._error:
            raise self._error
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), self._read_timeout_s)
        except TimeoutError as error:
            raise httpx.ReadTimeout("nothing arrived in time") from error


def _get_timeout_s(request: httpx.Request, kind: str) -> float | None:
    """The request's time limit for `connect`, `read`, `write` or `pool`, in seconds; None without a limit."""
    timeouts: dict[str, float | None] = request.extensions.get("timeout", {})
    return timeouts.get(kind)
