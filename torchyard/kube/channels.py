"""A WebSocket over an upgraded connection, whose messages belong to numbered channels: exec and portforward."""

import asyncio
import contextlib
import secrets
from base64 import b64encode
from collections import deque
from types import TracebackType
from typing import Any, NamedTuple, Self

import httpcore
import httpx

from torchyard.common.packages import need
from torchyard.kube.retry import TransientError

need("a session in a pod", "websockets")

from websockets.frames import OP_BINARY, OP_CLOSE, OP_CONT, OP_TEXT, Frame  # noqa: E402
from websockets.protocol import CLIENT, OPEN, Protocol  # noqa: E402

V4 = "v4.channel.k8s.io"
V5 = "v5.channel.k8s.io"  # since Kubernetes 1.30; it can also close a channel
_CLOSE_CHANNEL = 255  # of V5: its data is the number of the channel that ends
_PING_INTERVAL_S = 30.0  # proxies and load balancers end connections that are silent for a minute
_NORMAL_CLOSE = 1000  # the code of a close without an error
_READ_SIZE = 65536  # bytes


class Message(NamedTuple):
    """A message and its channel."""

    channel: int
    data: bytes


class Channels:
    """The channels of one WebSocket, as an async context manager that closes it at its end.

        async with await streams.open_channels(path, query, (V5, V4)) as channels:
            await channels.send(0, b"ls\\n")
            message = await channels.receive()

    Tasks. They belong to one event loop. One task calls `receive`; any may call the other methods at the same time. A
    ping is sent every `_PING_INTERVAL_S`.

    Errors. TransientError if the connection breaks.
    """

    def __init__(self, response: httpx.Response) -> None:
        """`response`: with status 101; it is closed with the channels."""
        self._response = response
        self._stream: Any = response.extensions["network_stream"]
        self._protocol = Protocol(CLIENT)
        self._messages: deque[Message] = deque()
        self._fragments: list[bytes] = []  # of a message that is not complete
        self._is_closed = False  # by the server
        self._writing = asyncio.Lock()
        self._ping_task: asyncio.Task[None] | None = None

    @property
    def can_close_channels(self) -> bool:
        """Whether the server understands the end of a single channel, such as that of stdin."""
        return bool(self._response.headers.get("sec-websocket-protocol") == V5)

    async def __aenter__(self) -> Self:
        self._ping_task = asyncio.create_task(self._send_pings())
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        assert self._ping_task
        self._ping_task.cancel()
        with contextlib.suppress(TransientError):
            if self._protocol.state is OPEN:
                self._protocol.send_close(_NORMAL_CLOSE)
                await self._flush()
        await self._response.aclose()

    async def send(self, channel: int, data: bytes) -> None:
        """Send a message."""
        if self._protocol.state is not OPEN:
            raise TransientError("the server has closed the connection")
        self._protocol.send_binary(bytes([channel]) + data)
        await self._flush()

    async def close_channel(self, channel: int) -> None:
        """Send the end of a channel; only if `can_close_channels`."""
        await self.send(_CLOSE_CHANNEL, bytes([channel]))

    async def receive(self) -> Message | None:
        """The next message that is not empty; None once the server has closed the connection."""
        while not self._messages:
            if self._is_closed:
                return None
            try:
                data = await self._stream.read(_READ_SIZE)
            except httpcore.NetworkError as error:
                raise TransientError(str(error) or type(error).__name__) from error
            if not data:
                return None
            self._protocol.receive_data(data)
            for event in self._protocol.events_received():
                assert isinstance(event, Frame)
                if event.opcode is OP_CLOSE:
                    self._is_closed = True
                elif event.opcode in (OP_BINARY, OP_TEXT, OP_CONT):
                    self._take_fragment(event)
            await self._flush()  # a pong, or the confirmation of a close
        return self._messages.popleft()

    def _take_fragment(self, frame: Frame) -> None:
        self._fragments.append(bytes(frame.data))
        if frame.fin:
            data = b"".join(self._fragments)
            self._fragments.clear()
            if len(data) > 1:
                self._messages.append(Message(data[0], data[1:]))

    async def _flush(self) -> None:
        """Write what the protocol has to send."""
        async with self._writing:
            for data in self._protocol.data_to_send():
                if not data:  # the end of our side: `aclose` closes the connection
                    continue
                try:
                    await self._stream.write(data)
                except httpcore.NetworkError as error:
                    raise TransientError(str(error) or type(error).__name__) from error

    async def _send_pings(self) -> None:
        with contextlib.suppress(TransientError):  # whoever receives gets the error
            while True:
                await asyncio.sleep(_PING_INTERVAL_S)
                if self._protocol.state is not OPEN:
                    return
                self._protocol.send_ping(b"")
                await self._flush()


def build_upgrade_headers(protocols: tuple[str, ...]) -> dict[str, str]:
    """The headers of a request that turns its connection into a WebSocket. `protocols`: in order of preference."""
    return {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": b64encode(secrets.token_bytes(16)).decode(),
        "Sec-WebSocket-Protocol": ", ".join(protocols),
    }
