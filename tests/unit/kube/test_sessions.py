"""Commands in a container and forwarded ports, with a server that starts real processes and connects to real ports."""

import asyncio
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.doubles.pod_sessions import PodSessions, build_status
from torchyard.common.project_root import ROOT
from torchyard.kube.channels import V4
from torchyard.kube.client import Client
from torchyard.kube.retry import TransientError
from torchyard.kube.sessions import ContainerCommand, forward_connection, parse_exit_code, run_in_container
from torchyard.kube.streams import StreamClient
from torchyard.model.errors import ClusterError
from torchyard.model.profile import Cluster

PATH = "/api/v1/namespaces/default/pods/train"


def run(*argv: str, text: bytes | None = None, folder: Path | None = None) -> tuple[int, bytes, bytes]:
    """Run a command in the pod with this input, from a file; its exit code, stdout and stderr."""
    output = {1: b"", 2: b""}

    def take(descriptor: int, data: bytes) -> None:
        output[descriptor] += data

    descriptor = None
    if text is not None and folder:
        (folder / "input").write_bytes(text)
        descriptor = os.open(folder / "input", os.O_RDONLY)
    try:
        streams = StreamClient(Client(Cluster()).credentials)
        exit_code = asyncio.run(run_in_container(streams, ContainerCommand(PATH, "main", argv, descriptor), take))
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return exit_code, output[1], output[2]


def test_command_has_its_output_and_exit_code(pod_sessions: PodSessions) -> None:
    """A command's stdout and stderr arrive apart, its arguments unchanged, and its exit code is returned."""
    assert run("sh", "-c", 'echo "$0|$1"; echo bad >&2; exit 3', "a b", "ü&") == (3, "a b|ü&\n".encode(), b"bad\n")
    (request,) = pod_sessions.find_requests("GET", "/exec")
    assert (request.query["container"], "stdin" in request.query, "tty" in request.query) == ("main", False, False)


def test_input_is_sent_to_its_end(pod_sessions: PodSessions, tmp_path: Path) -> None:
    """A command that reads its input to the end gets all of it, however large, and its output is complete."""
    data = os.urandom(3_000_000)
    assert run("cat", text=data, folder=tmp_path) == (0, data, b"")


def test_older_server_cannot_end_the_input(pod_sessions: PodSessions, tmp_path: Path) -> None:
    """With a server that cannot pass on the end of the input, one line on stderr states that."""
    pod_sessions.protocols = (V4,)
    exit_code, stdout, stderr = run("head", "-n", "1", text=b"one\n", folder=tmp_path)
    assert (exit_code, stdout) == (0, b"one\n")
    assert b"cannot report the end of the input" in stderr


def test_command_that_cannot_be_started_is_an_error(pod_sessions: PodSessions) -> None:
    """A program that the container does not have is an error with the container runtime's message."""
    with pytest.raises(ClusterError, match="No such file or directory: 'nosuch'"):
        run("nosuch")


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (b"[]", r"\[\]"),
        (b"{", "{"),
        (b'{"status": "Failure", "message": "no disk"}', "no disk"),
        (b"[" * 100_000, r"\[\["),
    ],
)
def test_unusable_status_is_an_error(status: bytes, message: str) -> None:
    """A status without an exit code, or that is malformed, is an error that quotes it."""
    assert parse_exit_code("host", build_status(7)) == 7
    with pytest.raises(ClusterError, match=message):
        parse_exit_code("host", status)


def test_broken_connection_is_not_an_end(pod_sessions: PodSessions) -> None:
    """A connection that breaks off proves nothing about the command: it has no exit code."""
    pod_sessions.breaks_off = True
    with pytest.raises(TransientError, match="may still be running"):
        run("true")


def test_refusal_and_missing_upgrade_are_errors(pod_sessions: PodSessions) -> None:
    """A refusal has the server's message; a proxy that answers without an upgrade is named as the likely cause."""
    pod_sessions.fail("GET", "/exec", 403)
    with pytest.raises(ClusterError, match="a fault of the test: 403"):
        run("true")
    pod_sessions.heal()
    pod_sessions.answer("GET", "/exec", 200, b"<html>")
    with pytest.raises(ClusterError, match="a proxy before the API server may not forward the upgrade"):
        run("true")


def test_expired_token_is_reloaded(pod_sessions: PodSessions) -> None:
    """After a 401 the kubeconfig is read again, and the session is opened with the new token."""
    client = Client(Cluster())
    pod_sessions.kubeconfig.write_text(pod_sessions.kubeconfig.read_text().replace("token: fake", "token: renewed"))
    pod_sessions.fail("GET", "/exec", 401, times=1)
    command = ContainerCommand(PATH, "main", ("true",))
    assert asyncio.run(run_in_container(StreamClient(client.credentials), command, lambda *_: None)) == 0


# --- with a terminal

TERMINAL_PROGRAM = f"""
import asyncio, sys
from torchyard.kube.client import Client
from torchyard.kube.sessions import ContainerCommand, run_in_container
from torchyard.kube.streams import StreamClient
from torchyard.model.profile import Cluster
from torchyard.cluster.access import write_output
command = ContainerCommand("{PATH}", "main", tuple(sys.argv[1:]), 0, True)
sys.exit(asyncio.run(run_in_container(StreamClient(Client(Cluster()).credentials), command, write_output)))
"""
# In Python: bash forgets a signal that arrives while it runs the trap of the one before it.
SIZE_PROGRAM = """
import os, signal, sys
def show(*_):
    size = os.get_terminal_size()
    os.write(1, f"{size.lines} {size.columns}\\n".encode())
signal.signal(signal.SIGWINCH, show)
show()
os.write(1, b"got " + sys.stdin.buffer.readline())
sys.exit(4)
"""
StartTerminal = Callable[..., tuple[int, subprocess.Popen[bytes]]]


@pytest.fixture
def start_in_terminal(pod_sessions: PodSessions) -> Iterator[StartTerminal]:
    """Start a command in the pod from a terminal of 33 x 99; the terminal's other end, and the process."""
    opened: list[int] = []
    started: list[subprocess.Popen[bytes]] = []

    def start(*argv: str) -> tuple[int, subprocess.Popen[bytes]]:
        master, slave = pty.openpty()
        opened.extend((master, slave))
        termios.tcsetwinsize(slave, (33, 99))
        command = [sys.executable, "-c", TERMINAL_PROGRAM, *argv]
        process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, cwd=ROOT, start_new_session=True)
        started.append(process)
        return master, process

    yield start
    for process in started:
        process.kill()
        process.wait()
    for descriptor in opened:
        os.close(descriptor)


def read_until(master: int, expected: bytes) -> bytes:
    """What the terminal shows, up to an expected text."""
    shown = b""
    while expected not in shown:
        shown += os.read(master, 65536)
    return shown


def test_terminal_is_passed_on_with_its_size(start_in_terminal: StartTerminal) -> None:
    """The command has a terminal of our size, learns of each change, gets each key, and leaves our mode as it was."""
    master, process = start_in_terminal(sys.executable, "-c", SIZE_PROGRAM)
    mode = termios.tcgetattr(master)
    read_until(master, b"33 99\r\n")
    assert termios.tcgetattr(master) != mode
    termios.tcsetwinsize(master, (44, 111))
    os.kill(process.pid, signal.SIGWINCH)
    read_until(master, b"44 111\r\n")
    os.write(master, b"end\r")
    read_until(master, b"got end\r\n")
    assert process.wait(20) == 4
    assert termios.tcgetattr(master) == mode


# --- a forwarded port


def exchange(port: int, data: bytes) -> tuple[bytes, BaseException | None]:
    """Send data through a forwarded connection and half-close it; the response, and the session's error."""

    async def talk() -> tuple[bytes, BaseException | None]:
        streams = StreamClient(Client(Cluster()).credentials)
        errors: list[BaseException | None] = []
        ended = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await forward_connection(streams, PATH, port, reader, writer)
                errors.append(None)
            except (ClusterError, TransientError) as error:
                errors.append(error)
            finally:
                writer.close()
                ended.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(data)
            response = await reader.read()
            writer.close()
            await ended.wait()
        return response, errors[0]

    return asyncio.run(talk())


def test_port_carries_bytes_both_ways(pod_sessions: PodSessions) -> None:
    """What a client sends reaches the port, and its response comes back complete, without the protocol's own bytes."""
    data = os.urandom(1_000_000)

    def answer() -> None:
        connection, _ = server.accept()
        received = b""
        while len(received) < len(data):
            received += connection.recv(65536)
        connection.sendall(received[::-1])
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer, daemon=True).start()
        assert exchange(server.getsockname()[1], data) == (data[::-1], None)


def test_port_without_a_listener_is_an_error(pod_sessions: PodSessions) -> None:
    """A port on which nothing listens is an error with the kubelet's message, and the client's connection ends."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    response, error = exchange(port, b"")
    assert response == b""
    assert "Connection refused" in str(error)
