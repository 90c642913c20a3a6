"""An HTTP/2 server on loopback whose responses a test writes chunk by chunk, for faults that no real server makes.

tests/cluster reads the logs of a real API server over the same transport.
"""

import asyncio
import contextlib
import ssl
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, RequestReceived, StreamReset

from tests.cluster.certificates import create_authority, issue_certificate

MAX_STREAMS = 100  # as an API server allows by default


class OpenResponse:
    """A response that has begun."""

    def __init__(self, connection: "ServedConnection", stream_id: int, path: str) -> None:
        self.connection = connection
        self.path = path
        self.was_reset = False
        self._id = stream_id

    async def send(self, data: bytes) -> None:
        """Send data as far as the client's windows allow, and wait for the client to take the rest."""
        while data:
            room = self.connection.h2.local_flow_control_window(self._id)
            if room > 0:
                size = min(room, self.connection.h2.max_outbound_frame_size)
                self.connection.h2.send_data(self._id, data[:size])
                self.connection.flush()
                data = data[size:]
            else:
                await self.connection.wait_for_input()

    def end(self) -> None:
        self.connection.h2.end_stream(self._id)
        self.connection.flush()


class ServedConnection:
    """One connection of a client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.h2 = H2Connection(H2Configuration(client_side=False))
        self.h2.local_settings.max_concurrent_streams = MAX_STREAMS
        self.is_silent = False
        self.has_closed = False  # the client has closed it
        self._reader = reader
        self._writer = writer
        self._input = asyncio.Event()

    async def serve(self, responses: "asyncio.Queue[OpenResponse]") -> None:
        """Begin a response with status 200 to every request."""
        self.h2.initiate_connection()
        self.flush()
        open_responses = {}
        while data := await self._reader.read(65536):
            if self.is_silent:
                continue
            for event in self.h2.receive_data(data):
                if isinstance(event, RequestReceived):
                    path = dict(event.headers)[b":path"].decode()
                    self.h2.send_headers(event.stream_id, [(":status", "200")])
                    open_responses[event.stream_id] = OpenResponse(self, event.stream_id, path)
                    responses.put_nowait(open_responses[event.stream_id])
                elif isinstance(event, StreamReset):
                    open_responses[event.stream_id].was_reset = True
                elif isinstance(event, ConnectionTerminated):
                    return
            self._input.set()
            self.flush()
        self.has_closed = True

    async def wait_for_input(self) -> None:
        self._input.clear()
        await self._input.wait()

    def go_away(self) -> None:
        self.h2.close_connection()
        self.flush()

    def close(self) -> None:
        self._writer.transport.abort()

    def flush(self) -> None:
        self._writer.write(self.h2.data_to_send())


class Http2Server:
    """The server's address, its certificate authority, and what has arrived."""

    def __init__(self, port: int, authority: str) -> None:
        self.url = f"https://127.0.0.1:{port}"
        self.authority = authority  # PEM
        self.connections: list[ServedConnection] = []
        self.responses: asyncio.Queue[OpenResponse] = asyncio.Queue()


@asynccontextmanager
async def serve_http2(protocol: str = "h2") -> AsyncIterator[Http2Server]:
    """A server on this event loop; with another ALPN protocol it answers HTTP/1.1 requests with `old`."""
    authority = create_authority("test")
    pair = issue_certificate(authority, "server", hosts=["127.0.0.1"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols([protocol])
    with tempfile.TemporaryDirectory() as folder:
        certificate = Path(folder, "certificate")
        certificate.write_bytes(pair.certificate + pair.key)
        context.load_cert_chain(certificate)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            if protocol == "h2":
                connection = ServedConnection(reader, writer)
                server.connections.append(connection)
                await connection.serve(server.responses)
            elif await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nold")
                await writer.drain()
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    server = Http2Server(listener.sockets[0].getsockname()[1], authority.certificate.decode())
    try:
        yield server
    finally:
        listener.close()
