"""The messages of a WebSocket, as a server's bytes arrive."""

import asyncio
from collections.abc import Sequence
from typing import Any

import httpcore
import httpx
import pytest
from websockets.frames import Frame
from websockets.protocol import SERVER, Protocol

from torchyard.kube import channels as channels_module
from torchyard.kube.channels import V4, V5, Channels, Message
from torchyard.kube.retry import TransientError


class Connection:
    """A connection that delivers these pieces, then its end; what is written is read by a server."""

    def __init__(self, pieces: Sequence[bytes | Exception]) -> None:
        self._pieces = list(pieces)
        self.server = Protocol(SERVER)

    async def read(self, _: int) -> bytes:
        await asyncio.sleep(0)
        piece = self._pieces.pop(0) if self._pieces else b""
        if isinstance(piece, Exception):
            raise piece
        return piece

    async def write(self, data: bytes) -> None:
        self.server.receive_data(data)

    def list_written(self) -> list[tuple[str, bytes]]:
        """The frames that were written: their opcode and data."""
        frames = [event for event in self.server.events_received() if isinstance(event, Frame)]
        return [(frame.opcode.name, bytes(frame.data)) for frame in frames]


def build_channels(connection: Connection, protocol: str = V5) -> Channels:
    headers = {"Sec-WebSocket-Protocol": protocol}
    return Channels(httpx.Response(101, headers=headers, extensions={"network_stream": connection}))


def receive_all(connection: Connection) -> list[Message]:
    async def receive() -> list[Message]:
        messages = []
        async with build_channels(connection) as channels:
            while message := await channels.receive():
                messages.append(message)
        return messages

    return asyncio.run(receive())


def build_bytes(*calls: tuple[str, Any]) -> bytes:
    """What a server sends with these calls of its protocol."""
    server = Protocol(SERVER)
    for name, arguments in calls:
        getattr(server, name)(*arguments)
    return b"".join(server.data_to_send())


def test_messages_are_complete_however_they_arrive() -> None:
    """Messages that are split or joined in transit, or sent in fragments, arrive whole; empty ones are left out."""
    data = build_bytes(
        ("send_binary", (b"\x01one",)),
        ("send_binary", (b"\x02",)),
        ("send_binary", (b"\x01tw", False)),
        ("send_continuation", (b"o", True)),
        ("send_text", (b"\x03{}",)),
        ("send_close", (1000,)),
    )
    messages = [Message(1, b"one"), Message(1, b"two"), Message(3, b"{}")]
    assert receive_all(Connection([data])) == messages
    assert receive_all(Connection([data[index : index + 1] for index in range(len(data))])) == messages


def test_ping_is_answered_and_a_close_confirmed() -> None:
    """A server's ping gets its pong, and its close the confirmation; nothing is sent after that."""
    connection = Connection([build_bytes(("send_ping", (b"here",)), ("send_close", (1000,)))])

    async def receive() -> None:
        async with build_channels(connection) as channels:
            assert await channels.receive() is None
            with pytest.raises(TransientError, match="has closed"):
                await channels.send(0, b"late")

    asyncio.run(receive())
    assert connection.list_written() == [("PONG", b"here"), ("CLOSE", b"\x03\xe8")]


def test_pings_keep_the_connection_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent session sends pings, and a close at its end."""
    monkeypatch.setattr(channels_module, "_PING_INTERVAL_S", 0.0)
    connection = Connection([])

    async def wait() -> None:
        async with build_channels(connection) as channels:
            await channels.send(4, b"size")
            while len(connection.server.events) < 3:
                await asyncio.sleep(0)

    asyncio.run(wait())
    names = [name for name, _ in connection.list_written()]
    assert (names[0], set(names[1:-1]), names[-1]) == ("BINARY", {"PING"}, "CLOSE")


def test_broken_connection_is_transient() -> None:
    """A connection that breaks is a TransientError with a reason."""
    with pytest.raises(TransientError, match="ReadError"):
        receive_all(Connection([httpcore.ReadError()]))


@pytest.mark.parametrize(("protocol", "can_close"), [(V5, True), (V4, False)])
def test_only_the_newer_protocol_can_close_a_channel(protocol: str, can_close: bool) -> None:
    """Whether the end of stdin can be sent depends on the protocol that the server chose."""
    assert build_channels(Connection([]), protocol).can_close_channels is can_close
