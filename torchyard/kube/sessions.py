"""A command in a pod's container, and a connection to a port of a pod, over the channels of a WebSocket."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from torchyard.common.json_text import parse_json
from torchyard.kube.channels import V4, V5, Channels
from torchyard.kube.retry import TransientError
from torchyard.kube.streams import StreamClient
from torchyard.kube.terminal import raw_terminal, read_size
from torchyard.model.errors import ClusterError

_STDIN = 0
_STDOUT = 1
_STDERR = 2
_STATUS = 3  # a Status object, once the command has ended
_SIZE = 4  # of the terminal
_DATA = 0
_ERROR = 1
_PORT_BYTES = 2  # the first message of each channel of a forwarded port contains that port
_READ_SIZE = 32768  # bytes of input in a message
_HALF_CLOSED_TIMEOUT_S = 60.0  # for the rest of a response, because the protocol cannot pass on a client's half-close
_UNENDED_INPUT = (
    "this API server (older than Kubernetes 1.30) cannot report the end of the input to the command: if it waits for "
    "that, stop it with Ctrl-C"
)


class ContainerCommand(NamedTuple):
    """A command to run in a container.

    pod_path: the API path of the pod.
    input_descriptor: of this process's stdin, which it reads; None if it gets no input.
    has_terminal: this descriptor is a terminal, and the command gets one too; its stderr is then part of stdout.
    """

    pod_path: str
    container: str
    argv: tuple[str, ...]
    input_descriptor: int | None = None
    has_terminal: bool = False


def build_exec_query(command: ContainerCommand) -> list[tuple[str, str]]:
    """The query of the request that runs a command."""
    query = [("container", command.container), ("stdout", "true")]
    query.append(("tty", "true") if command.has_terminal else ("stderr", "true"))
    if command.input_descriptor is not None:
        query.append(("stdin", "true"))
    query += [("command", arg) for arg in command.argv]
    return query


async def run_in_container(
    streams: StreamClient, command: ContainerCommand, on_output: Callable[[int, bytes], object]
) -> int:
    """Run a command in a container to its end; return its exit code. Cancelling it does not end the command.

    `on_output` gets each piece of its stdout (1) and stderr (2). ClusterError if the server refuses the request or
    cannot start the command, TransientError if the connection breaks. A command with a terminal needs the main thread.
    """
    channels = await streams.open_channels(f"{command.pod_path}/exec", build_exec_query(command), (V5, V4))
    async with channels:
        with _send_input_beside(channels, command, on_output):
            status = await _receive_output(channels, on_output)
    return parse_exit_code(streams.host, status)


async def _receive_output(channels: Channels, on_output: Callable[[int, bytes], object]) -> bytes:
    """Receive the output of a command to its end, and return the Status object that then follows, as JSON.

    Raises TransientError without one: a connection that ends does not prove that the command has.
    """
    status = b""
    reason = "the API server closed it"
    try:
        while message := await channels.receive():
            if message.channel in (_STDOUT, _STDERR):
                on_output(message.channel, message.data)
            elif message.channel == _STATUS:
                status += message.data
    except TransientError as error:
        reason = error.message
    if not status:
        raise TransientError(f"the connection broke off; the command may still be running ({reason})")
    return status


def parse_exit_code(host: str, status: bytes) -> int:
    """The exit code that a Status object reports. ClusterError with its message if the command was not started."""
    try:
        document = parse_json(status)
        if document["status"] == "Success":
            return 0
        if document.get("reason") == "NonZeroExitCode":
            for cause in document["details"]["causes"]:
                if cause.get("reason") == "ExitCode":
                    return int(cause["message"])
        message = str(document.get("message") or status.decode(errors="replace"))
    except (ValueError, KeyError, TypeError, AttributeError):
        message = status.decode(errors="replace")
    raise ClusterError(host, "start the command", message[:500], 0)


# --- a command's input


@contextlib.contextmanager
def _send_input_beside(
    channels: Channels, command: ContainerCommand, on_output: Callable[[int, bytes], object]
) -> Iterator[None]:
    """Send the input of a command, and the size of its terminal, while the body runs."""
    descriptor = command.input_descriptor
    if descriptor is None:
        yield
        return
    tasks = [asyncio.create_task(_send_input(channels, descriptor, on_output))]
    terminal = raw_terminal(descriptor) if command.has_terminal else contextlib.nullcontext()
    with terminal:
        resized = asyncio.Event()
        resized.set()
        if command.has_terminal:
            asyncio.get_running_loop().add_signal_handler(signal.SIGWINCH, resized.set)
            tasks.append(asyncio.create_task(_send_sizes(channels, descriptor, resized)))
        try:
            yield
        finally:
            if command.has_terminal:
                asyncio.get_running_loop().remove_signal_handler(signal.SIGWINCH)
            for task in tasks:
                task.cancel()


async def _send_input(channels: Channels, descriptor: int, on_output: Callable[[int, bytes], object]) -> None:
    with contextlib.suppress(TransientError):  # whoever receives gets the error
        while data := await read_input(descriptor):
            await channels.send(_STDIN, data)
        if channels.can_close_channels:
            await channels.close_channel(_STDIN)
        else:
            on_output(_STDERR, f"torchyard: {_UNENDED_INPUT}\n".encode())


async def read_input(descriptor: int) -> bytes:
    """Wait for input and read it; empty at its end, or if the terminal has gone away."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(descriptor, readable.set)
    except PermissionError:  # a regular file or /dev/null, which can always be read
        readable.set()
    try:
        await readable.wait()
        return os.read(descriptor, _READ_SIZE)
    except OSError:
        return b""
    finally:
        loop.remove_reader(descriptor)


async def _send_sizes(channels: Channels, descriptor: int, resized: asyncio.Event) -> None:
    with contextlib.suppress(TransientError, OSError):
        while True:
            await resized.wait()
            resized.clear()
            size = read_size(descriptor)
            await channels.send(_SIZE, json.dumps({"Width": size.columns, "Height": size.rows}).encode())


# --- a forwarded port


async def forward_connection(
    streams: StreamClient, pod_path: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Connect a client of this machine with a port of a pod, until one of them closes the connection.

    ClusterError if the server refuses the request or cannot reach the port, TransientError if the connection breaks.
    """
    query: Sequence[tuple[str, str]] = [("ports", str(port))]
    channels = await streams.open_channels(f"{pod_path}/portforward", query, (V4,))
    async with channels:
        sending = asyncio.create_task(_send_stream(channels, reader))
        receiving = asyncio.create_task(_receive_stream(channels, writer))
        try:
            await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
            done, _ = await asyncio.wait({receiving}, timeout=_HALF_CLOSED_TIMEOUT_S)
        finally:
            sending.cancel()
            receiving.cancel()
    error = receiving.result() if done else ""
    if error:
        raise ClusterError(streams.host, f"connect to port {port}", error, 0)


async def _send_stream(channels: Channels, reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(TransientError, ConnectionError):
        while data := await reader.read(_READ_SIZE):
            await channels.send(_DATA, data)


async def _receive_stream(channels: Channels, writer: asyncio.StreamWriter) -> str:
    """Write what arrives from the port, to its end; return the error that the server reports, "" without one."""
    started: set[int] = set()
    error = b""
    with contextlib.suppress(ConnectionError):  # the client is gone
        while message := await channels.receive():
            data = message.data
            if message.channel not in started:
                started.add(message.channel)
                data = data[_PORT_BYTES:]
            if message.channel == _DATA and data:
                writer.write(data)
                await writer.drain()
            elif message.channel == _ERROR:
                error += data
    return error.decode(errors="replace").strip()
