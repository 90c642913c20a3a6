"""A fake API server whose pods are this machine: exec starts real processes, and portforward connects to real ports.

It speaks the WebSocket protocols of a kubelet; tests/cluster/test_enter.py does the same with a real one.
"""

import contextlib
import json
import os
import pty
import queue
import selectors
import socket
import struct
import subprocess
import termios
import threading
from urllib.parse import parse_qs, urlsplit

from websockets.frames import OP_BINARY, Frame
from websockets.protocol import SERVER, Protocol

from tests.doubles.fake_api import FakeApi, Handler, ReceivedRequest
from torchyard.kube.channels import V4, V5

STDIN, STDOUT, STDERR, STATUS, SIZE = range(5)
CLOSE_CHANNEL = 255


class PodSessions(FakeApi):
    """The server.

    protocols: the ones that it speaks; older servers speak V4 only.
    breaks_off: each session ends without a status, as if its node was lost.
    """

    protocols: tuple[str, ...] = (V5, V4)
    breaks_off = False


class SessionHandler(Handler):
    """Serves exec and portforward as WebSockets, everything else as the fake API server does."""

    server_of: PodSessions

    def serve(self) -> None:
        url = urlsplit(self.path)
        verb = url.path.rpartition("/")[2]
        if "Upgrade" not in self.headers or verb not in ("exec", "portforward"):
            super().serve()
            return
        fault = self.server_of.take_fault("GET", self.path)
        if fault:
            self._reply(fault.status, fault.body)
            return
        if self.headers["Accept"] != "*/*":  # a kubelet has no other type for a connection
            self._reply(406, b"406: Not Acceptable")
            return
        query = parse_qs(url.query)
        self.server_of.received.append(ReceivedRequest("GET", url.path, {key: query[key][0] for key in query}, None))
        offered = self.headers["Sec-WebSocket-Protocol"].split(", ")
        chosen = next(protocol for protocol in offered if protocol in self.server_of.protocols)
        self.send_response(101)
        self.send_header("Connection", "Upgrade")
        self.send_header("Upgrade", "websocket")
        self.send_header("Sec-WebSocket-Protocol", chosen)
        self.end_headers()
        self.wfile.flush()
        self.close_connection = True
        link = _Link(self.connection)
        if self.server_of.breaks_off:
            return
        if verb == "exec":
            run_command(link, query)
        else:
            forward_port(link, int(query["ports"][0]))
        link.close()


class _Link:
    """The server's end of a WebSocket: messages of channels."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._protocol = Protocol(SERVER)
        self._lock = threading.Lock()

    def send(self, channel: int, data: bytes) -> None:
        with self._lock:
            self._protocol.send_binary(bytes([channel]) + data)
            self._flush()

    def receive(self) -> list[tuple[int, bytes]] | None:
        """The messages that have arrived; None once the client has closed the connection."""
        data = self.sock.recv(65536)
        if not data:
            return None
        with self._lock:
            self._protocol.receive_data(data)
            messages: list[tuple[int, bytes]] = []
            for event in self._protocol.events_received():
                if isinstance(event, Frame) and event.opcode is OP_BINARY:
                    messages.append((event.data[0], bytes(event.data[1:])))
            self._flush()
        return messages

    def close(self) -> None:
        """Close the connection once the client has: data that is not read would reset it."""
        with self._lock:
            self._protocol.send_close(1000)
            self._flush()
        with contextlib.suppress(OSError):
            while self.sock.recv(65536):
                pass

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            try:
                self.sock.sendall(data)
            except OSError:  # the client is gone
                return


class _Command:
    """A command as a container runtime runs it: with pipes, or with a terminal of its own."""

    def __init__(self, query: dict[str, list[str]]) -> None:
        self._terminal, slave = pty.openpty() if "tty" in query else (-1, -1)
        pipe = subprocess.PIPE if slave < 0 else slave
        input_pipe = pipe if "stdin" in query else subprocess.DEVNULL
        argv = query["command"]
        if slave >= 0:
            argv = ["setsid", "--ctty", *argv]  # the kernel reports changes of its size to the session that has it
        self.process = subprocess.Popen(argv, stdin=input_pipe, stdout=pipe, stderr=pipe, start_new_session=slave < 0)
        self._input: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        if self.process.stdin:
            threading.Thread(target=self._write_input, daemon=True).start()
        self.outputs: dict[int, int] = {}  # the channel of each descriptor
        if slave >= 0:
            os.close(slave)
            self.outputs[self._terminal] = STDOUT
        if self.process.stdout and self.process.stderr:
            self.outputs |= {self.process.stdout.fileno(): STDOUT, self.process.stderr.fileno(): STDERR}

    def read(self, descriptor: int) -> bytes:
        try:
            return os.read(descriptor, 65536)
        except OSError:  # of a terminal whose process has ended
            return b""

    def take(self, channel: int, data: bytes) -> None:
        """Take a message of the client."""
        if channel == SIZE:
            size = json.loads(data)
            termios.tcsetwinsize(self._terminal, (size["Height"], size["Width"]))
        elif channel == STDIN and self._terminal >= 0:
            os.write(self._terminal, data)
        elif channel == STDIN:
            self._input.put(data)
        elif channel == CLOSE_CHANNEL:
            self._input.put(b"")

    def _write_input(self) -> None:
        """Write the input, until its end, on a thread: the command may read none before its output is read."""
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError), self.process.stdin as pipe:
            while data := self._input.get():
                pipe.write(data)
                pipe.flush()

    def end(self) -> int:
        """Wait for its end; its exit code."""
        self._input.put(b"")
        if self._terminal >= 0:
            os.close(self._terminal)
        return self.process.wait()


def run_command(link: _Link, query: dict[str, list[str]]) -> None:
    """Run a command, and send its output and its end."""
    try:
        command = _Command(query)
    except OSError as error:
        message = f"error executing command in container: {error}"
        link.send(STATUS, json.dumps({"status": "Failure", "reason": "InternalError", "message": message}).encode())
        return
    with selectors.DefaultSelector() as selector:
        selector.register(link.sock, selectors.EVENT_READ)
        for descriptor in command.outputs:
            selector.register(descriptor, selectors.EVENT_READ)
        while len(selector.get_map()) > 1:
            for key, _ in selector.select():
                if key.fileobj is link.sock:
                    messages = link.receive()
                    if messages is None:
                        command.process.kill()
                        return
                    for channel, data in messages:
                        command.take(channel, data)
                elif data := command.read(key.fd):
                    link.send(command.outputs[key.fd], data)
                else:
                    selector.unregister(key.fileobj)
    link.send(STATUS, build_status(command.end()))


def build_status(exit_code: int) -> bytes:
    """The Status object that reports the end of a command."""
    if exit_code == 0:
        return json.dumps({"status": "Success"}).encode()
    causes = [{"reason": "ExitCode", "message": str(exit_code)}]
    return json.dumps({"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}).encode()


def forward_port(link: _Link, port: int) -> None:
    """Connect a client with a port of this machine, as a kubelet does with a port of a pod."""
    for channel in (0, 1):
        link.send(channel, struct.pack("<H", port))
    try:
        target = socket.create_connection(("127.0.0.1", port))
    except OSError as error:
        link.send(1, f"error forwarding port {port}: {error}".encode())
        return
    with target, selectors.DefaultSelector() as selector:
        selector.register(link.sock, selectors.EVENT_READ)
        selector.register(target, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is target:
                    data = target.recv(65536)
                    if not data:
                        return
                    link.send(0, data)
                    continue
                messages = link.receive()
                if messages is None:
                    return
                for _, data in messages:
                    target.sendall(data)
