"""A proxy to the API server that injects faults and records requests: for faults that no healthy server has."""

import contextlib
import json
import socket
import ssl
import struct
import threading
import time
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import yaml

from torchyard.kube.kubeconfig import load_settings

VERBS = (b"GET ", b"POST ", b"PUT ", b"PATCH ", b"DELETE ")
CONTEXT = "wire"


class Link:
    """A connection of a client, and the matching one to the API server.

    request: the latest request line. forwarded_bytes: of its response. is_response_pending: no byte of the response has
    arrived yet. is_answered: the proxy has answered instead of the API server. is_stalled: nothing more is forwarded.
    """

    def __init__(self, client_socket: socket.socket, server_socket: ssl.SSLSocket) -> None:
        self.client_socket = client_socket
        self.server_socket = server_socket
        self.request = ""
        self.forwarded_bytes = 0
        self.is_stalled = False
        self.is_response_pending = False
        self.is_answered = False

    def close(self) -> None:
        for sock in (self.client_socket, self.server_socket):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


class FaultProxy:
    """Plain HTTP on the client's side, TLS on the API server's; `request_lines` holds every request line.

    Clients use it through a kubeconfig with the context CONTEXT. Requests use this machine's own credentials, until
    `use_credentials` puts another user into that kubeconfig.

    Each connection has a daemon thread, which forwards in both directions; `_accept_connections` runs in another one.
    Tests call the faults from their own thread. The flags `is_down` (new connections are rejected), `is_black_hole`
    (new connections are stalled), `is_unresolvable` (see test_faults.py) and `delay_s` (before each response) can be
    set directly. `repair` ends all of these; `close` stops the threads.
    """

    def __init__(self, folder: Path) -> None:
        self.request_lines: list[str] = []
        self.is_down = False
        self.is_black_hole = False
        self.is_unresolvable = False
        self.delay_s = 0.0
        self._settings, _ = load_settings(None)
        self._user: dict[str, Any] | None = None
        self._links: list[Link] = []
        self._responses: dict[str, list[bytes]] = {}
        self._cut_sizes: dict[str, int] = {}
        self._rates: dict[str, float] = {}
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.kubeconfig = folder / f"wire-{self.port}.yaml"
        self.use_credentials(None)
        threading.Thread(target=self._accept_connections, daemon=True).start()

    def use_credentials(self, user: dict[str, Any] | None) -> None:
        """Write the kubeconfig for another user; the API server then gets only that user's credentials."""
        self._user = user
        self.kubeconfig.write_text(yaml.safe_dump(self._build_kubeconfig()))

    def _build_kubeconfig(self) -> dict[str, Any]:
        token = self._settings.get_api_key_with_prefix("authorization")
        user = self._user
        if user is None:
            user = {"token": token.removeprefix("Bearer ")} if token else {}
        cluster = {"server": f"http://127.0.0.1:{self.port}"}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": CONTEXT, "cluster": cluster}],
            "users": [{"name": CONTEXT, "user": user}],
            "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": CONTEXT}}],
        }

    # --- faults

    def cut(self, substring: str = "") -> None:
        """Close every connection whose latest request contains this text, in the middle of its data."""
        for link in self._find_links(substring):
            link.close()

    def cut_after(self, substring: str, size: int) -> None:
        """Close only the next connection with such a request, once it has carried more than `size` bytes."""
        self._cut_sizes[substring] = size

    def _find_links(self, substring: str) -> list[Link]:
        """The open connections whose latest request contains this text, as a copy."""
        return [link for link in self._links if substring in link.request]

    def slow(self, substring: str, bytes_per_s: float) -> None:
        """Limit the responses to such requests to this rate, on each connection."""
        self._rates[substring] = bytes_per_s

    def stall(self, substring: str = "") -> None:
        """Forward nothing more over the open connections with such a request, without closing them."""
        for link in self._find_links(substring):
            link.is_stalled = True

    def interrupt(self, *, duration_s: float) -> None:
        """Close all connections, reject new ones for `duration_s`, and return."""
        self.is_down = True
        self.cut()
        time.sleep(duration_s)
        self.is_down = False

    def reset(self) -> None:
        """Break every connection with RST, like a machine that has lost its connections."""
        for link in list(self._links):
            link.client_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            link.client_socket.close()
            link.close()

    def refuse(self) -> None:
        """Close all connections and stop listening, until `repair`."""
        self._stop()
        self.cut()

    def drop_data(self) -> None:
        """Forward nothing on open or new connections, without closing them, until `repair`."""
        self.is_black_hole = True
        self.stall()

    def respond(
        self, substring: str, status: int, body: dict[str, Any] | bytes, times: int = 1, **headers: str
    ) -> None:
        """Answer the next such requests instead of the API server; headers are spelled like `Retry_After`."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode() + b"\n"
        header_fields = {"Content-Type": "application/json", "Content-Length": str(len(data))} | headers
        header = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in header_fields.items())
        self._responses[substring] = [f"HTTP/1.1 {status} Fault\r\n{header}\r\n".encode() + data] * times

    def repair(self) -> None:
        """End every lasting fault: outages, delays, black holes and responses. Stalled connections stay stalled."""
        self.is_down = False
        self.is_black_hole = False
        self.is_unresolvable = False
        self.delay_s = 0.0
        self._responses.clear()
        self._rates.clear()
        if self._server.fileno() < 0:
            self._server = socket.create_server(("127.0.0.1", self.port))
            threading.Thread(target=self._accept_connections, daemon=True).start()

    def count_requests(self, substring: str) -> int:
        """The number of requests whose line contains this text."""
        return sum(substring in line for line in self.request_lines)

    def close(self) -> None:
        """Close all connections and stop listening."""
        self.is_down = True
        self._stop()
        self.cut()

    def _stop(self) -> None:
        with contextlib.suppress(OSError):  # wakes the thread in accept(), which holds the port
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    # --- forwarding

    def _accept_connections(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client_socket, _ = self._server.accept()
                if self.is_down:
                    client_socket.close()
                else:
                    threading.Thread(target=self._forward, args=(client_socket,), daemon=True).start()

    def _forward(self, client_socket: socket.socket) -> None:
        """Forward the data of a client's connection in both directions, until one side closes it."""
        context = ssl.create_default_context(cafile=self._settings.ssl_ca_cert)
        if self._settings.cert_file and self._user is None:
            context.load_cert_chain(self._settings.cert_file, self._settings.key_file)
        host, _, port = str(self._settings.host).removeprefix("https://").partition(":")
        try:
            server_socket = socket.create_connection((host, int(port or 443)))
            link = Link(client_socket, context.wrap_socket(server_socket, server_hostname=host))
        except OSError:  # the API server itself is down
            client_socket.close()
            return
        link.server_socket.settimeout(0.1)
        link.is_stalled = self.is_black_hole
        self._links.append(link)
        with contextlib.suppress(OSError, ValueError):
            while self._forward_once(link):
                pass
        link.close()
        self._links.remove(link)

    def _forward_once(self, link: Link) -> bool:
        """Forward the available data; return False when the connection has ended."""
        ready: list[socket.socket] = [link.server_socket]
        if not link.server_socket.pending():  # data that TLS has already decrypted does not wake it
            readable = wait([link.client_socket, link.server_socket], timeout=1.0)
            ready = [sock for sock in (link.client_socket, link.server_socket) if sock in readable]
        if link.is_stalled:
            time.sleep(0.05)
            return True
        for sock in ready:
            try:
                data = sock.recv(1 << 16)
            except TimeoutError:  # TLS records without data
                continue
            if not data:
                return False
            forward = self.forward_request if sock is link.client_socket else self.forward_response
            if not forward(link, data):
                return False
        return True

    def forward_request(self, link: Link, data: bytes) -> bool:
        """Forward a client's data, unless the proxy answers the request.

        Return False if the connection must be closed.
        """
        if data.startswith(VERBS):
            link.request = data.split(b" HTTP/", 1)[0].decode()
            link.forwarded_bytes = 0
            link.is_response_pending = True
            link.is_answered = False
            self.request_lines.append(link.request)
            for substring, responses in list(self._responses.items()):
                if responses and substring in link.request and not link.is_answered:
                    link.client_socket.sendall(responses.pop())
                    link.is_answered = True
        if not link.is_answered:  # a body may arrive after its header, and belongs to the answered request
            link.server_socket.sendall(data)
        return True

    def forward_response(self, link: Link, data: bytes) -> bool:
        """Forward the API server's data, with the faults for it; return False if the connection must be closed."""
        if link.is_response_pending:
            link.is_response_pending = False
            time.sleep(self.delay_s)
        for substring, size in list(self._cut_sizes.items()):
            if substring in link.request and link.forwarded_bytes + len(data) > size:
                del self._cut_sizes[substring]
                link.client_socket.sendall(data[: size - link.forwarded_bytes])
                return False
        link.forwarded_bytes += len(data)
        link.client_socket.sendall(data)
        for substring, bytes_per_s in list(self._rates.items()):
            if substring in link.request:
                time.sleep(len(data) / bytes_per_s)
        return True
