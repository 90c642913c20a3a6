"""A proxy to the API server that injects faults and records requests: for faults that no healthy server shows."""

import contextlib
import json
import select
import socket
import ssl
import struct
import threading
import time
from pathlib import Path
from typing import Any

import yaml

from torchyard.kube.kubeconfig import load_settings

VERBS = (b"GET ", b"POST ", b"PUT ", b"PATCH ", b"DELETE ")
CONTEXT = "wire"


class Link:
    """A connection of a client, and the matching one to the API server."""

    def __init__(self, near: socket.socket, far: ssl.SSLSocket) -> None:
        self.near, self.far = near, far
        self.request, self.given, self.stalled = "", 0, False
        self.late, self.answered = False, False

    def close(self) -> None:
        for end in (self.near, self.far):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Wire:
    """Plain HTTP on the client's side, TLS on the API server's; `asked` holds every request line.

    Requests use this machine's own credentials, until `become` puts another user into the kubeconfig.
    """

    def __init__(self, place: Path) -> None:
        self.asked: list[str] = []
        self.away, self.hole, self.nameless = False, False, False
        self.delay = 0.0
        self._settings, _ = load_settings(None)
        self._user: dict[str, Any] | None = None
        self._links: list[Link] = []
        self._answers: dict[str, list[bytes]] = {}
        self._cuts: dict[str, int] = {}
        self._rates: dict[str, float] = {}
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.kubeconfig = place / f"wire-{self.port}.yaml"
        self.become(None)
        threading.Thread(target=self._serve, daemon=True).start()

    def become(self, user: dict[str, Any] | None) -> None:
        """Write the kubeconfig for another user; the API server then sees only that user's credentials."""
        self._user = user
        self.kubeconfig.write_text(yaml.safe_dump(self._document()))

    def _document(self) -> dict[str, Any]:
        token = self._settings.get_api_key_with_prefix("authorization")
        own = {"token": token.removeprefix("Bearer ")} if token else {}
        server = {"server": f"http://127.0.0.1:{self.port}"}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": CONTEXT, "cluster": server}],
            "users": [{"name": CONTEXT, "user": own if self._user is None else self._user}],
            "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": CONTEXT}}],
        }

    # --- faults

    def cut(self, what: str = "") -> None:
        """Close every connection whose latest request contains this text, in the middle of its data."""
        for link in [each for each in self._links if what in each.request]:
            link.close()

    def cut_after(self, what: str, size: int) -> None:
        """Close only the next connection with such a request, once it has carried this many bytes."""
        self._cuts[what] = size

    def slow(self, what: str, rate: float) -> None:
        """Limit the answers to such requests to this many bytes per second and connection."""
        self._rates[what] = rate

    def stall(self, what: str = "") -> None:
        """Forward nothing more over the open connections with such a request, without closing them."""
        for link in [each for each in self._links if what in each.request]:
            link.stalled = True

    def leave(self, seconds: float) -> None:
        """Close all connections, and reject new ones for some seconds."""
        self.away = True
        self.cut()
        time.sleep(seconds)
        self.away = False

    def reset(self) -> None:
        """Break every connection with RST, like a machine that has lost its connections."""
        for link in list(self._links):
            link.near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            link.near.close()
            link.close()

    def refuse(self) -> None:
        """Close all connections and stop listening, until `mend`."""
        self._stop()
        self.cut()

    def swallow(self) -> None:
        """Forward nothing on open or new connections, without closing them, until `mend`."""
        self.hole = True
        self.stall()

    def answer(self, what: str, status: int, body: dict[str, Any] | bytes, times: int = 1, **headers: str) -> None:
        """Answer the next such requests instead of the API server; headers are spelled like `Retry_After`."""
        text = body if isinstance(body, bytes) else json.dumps(body).encode() + b"\n"
        told = {"Content-Type": "application/json", "Content-Length": str(len(text)), **headers}
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in told.items())
        self._answers[what] = [f"HTTP/1.1 {status} Told\r\n{head}\r\n".encode() + text] * times

    def mend(self) -> None:
        """End every lasting fault: outages, delays, black holes and answers. Stalled connections stay stalled."""
        self.away, self.hole, self.nameless, self.delay = False, False, False, 0.0
        self._answers.clear()
        self._rates.clear()
        if self._server.fileno() < 0:
            self._server = socket.create_server(("127.0.0.1", self.port))
            threading.Thread(target=self._serve, daemon=True).start()

    def count(self, what: str) -> int:
        return sum(what in line for line in self.asked)

    def close(self) -> None:
        self.away = True
        self._stop()
        self.cut()

    def _stop(self) -> None:
        with contextlib.suppress(OSError):  # wakes the thread in accept(), which holds the port
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    # --- forwarding

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                if self.away:
                    near.close()
                else:
                    threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        context = ssl.create_default_context(cafile=self._settings.ssl_ca_cert)
        if self._settings.cert_file and self._user is None:
            context.load_cert_chain(self._settings.cert_file, self._settings.key_file)
        host, _, port = str(self._settings.host).removeprefix("https://").partition(":")
        try:
            far = socket.create_connection((host, int(port or 443)))
            link = Link(near, context.wrap_socket(far, server_hostname=host))
        except OSError:  # the API server itself is down
            near.close()
            return
        link.far.settimeout(0.1)
        link.stalled = self.hole
        self._links.append(link)
        with contextlib.suppress(OSError, ValueError):
            while self._pass(link):
                pass
        link.close()
        self._links.remove(link)

    def _pass(self, link: Link) -> bool:
        """Forward the available data; False when the connection has ended."""
        ready = [link.far] if link.far.pending() else select.select([link.near, link.far], [], [], 1.0)[0]
        if link.stalled:
            time.sleep(0.05)
            return True
        for end in ready:
            try:
                data = end.recv(1 << 16)
            except TimeoutError:  # TLS records without data
                continue
            if not data or not (self._ask(link, data) if end is link.near else self._give(link, data)):
                return False
        return True

    def _ask(self, link: Link, data: bytes) -> bool:
        if data.startswith(VERBS):
            link.request, link.given, link.late = data.split(b" HTTP/", 1)[0].decode(), 0, True
            link.answered = False
            self.asked.append(link.request)
            for what, told in list(self._answers.items()):
                if told and what in link.request and not link.answered:
                    link.near.sendall(told.pop())
                    link.answered = True
        if not link.answered:  # a body may come after its head
            link.far.sendall(data)
        return True

    def _give(self, link: Link, data: bytes) -> bool:
        if link.late:
            link.late = False
            time.sleep(self.delay)
        for what in [each for each in self._cuts if each in link.request]:
            if link.given + len(data) > self._cuts[what]:
                link.near.sendall(data[: self._cuts.pop(what) - link.given])
                return False
        link.given += len(data)
        link.near.sendall(data)
        for what in [each for each in self._rates if each in link.request]:
            time.sleep(len(data) / self._rates[what])
        return True
