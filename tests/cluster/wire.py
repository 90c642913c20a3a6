"""A way to the API server that breaks as told, and counts what is asked: for faults that no healthy server has."""

import contextlib
import json
import select
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import yaml

from tasks.cluster import load

VERBS = (b"GET ", b"POST ", b"PUT ", b"PATCH ", b"DELETE ")
CONTEXT = "wire"


class Link:
    """One connection of a client, and its other half to the API server."""

    def __init__(self, near: socket.socket, far: ssl.SSLSocket) -> None:
        self.near, self.far = near, far
        self.request, self.given, self.stalled = "", 0, False

    def close(self) -> None:
        for end in (self.near, self.far):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Wire:
    """Plain HTTP on this side, the API server's TLS on the other; `asked` holds every request line."""

    def __init__(self, place: Path) -> None:
        self.asked: list[str] = []
        self.away = False
        self._settings, _ = load(None)
        self._links: list[Link] = []
        self._answers: dict[str, list[bytes]] = {}
        self._cuts: dict[str, int] = {}
        self._server = socket.create_server(("127.0.0.1", 0))
        self.kubeconfig = place / f"wire-{self._server.getsockname()[1]}.yaml"
        self.kubeconfig.write_text(yaml.safe_dump(self._document()))
        threading.Thread(target=self._serve, daemon=True).start()

    def _document(self) -> dict[str, Any]:
        token = self._settings.get_api_key_with_prefix("authorization")
        server = {"server": f"http://127.0.0.1:{self._server.getsockname()[1]}"}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": CONTEXT, "cluster": server}],
            "users": [{"name": CONTEXT, "user": {"token": token.removeprefix("Bearer ")} if token else {}}],
            "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": CONTEXT}}],
        }

    # --- faults

    def cut(self, what: str = "") -> None:
        """Close every connection whose latest request has some text, in the middle of whatever it carries."""
        for link in [each for each in self._links if what in each.request]:
            link.close()

    def cut_after(self, what: str, size: int) -> None:
        """Close the next connection for such a request once it has carried so many bytes, and no other."""
        self._cuts[what] = size

    def stall(self, what: str = "") -> None:
        """Carry nothing any more over the connections there are, without closing them."""
        for link in [each for each in self._links if what in each.request]:
            link.stalled = True

    def leave(self, seconds: float) -> None:
        """Be away: nothing is carried and nobody is let in."""
        self.away = True
        self.cut()
        time.sleep(seconds)
        self.away = False

    def answer(self, what: str, status: int, body: dict[str, Any] | bytes, times: int = 1) -> None:
        """Answer the next such requests in the API server's place."""
        text = body if isinstance(body, bytes) else json.dumps(body).encode() + b"\n"
        head = f"HTTP/1.1 {status} Told\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
        self._answers[what] = [head.encode() + text] * times

    def count(self, what: str) -> int:
        return sum(what in line for line in self.asked)

    def close(self) -> None:
        self.away = True
        self._server.close()
        self.cut()

    # --- carrying

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
        if self._settings.cert_file:
            context.load_cert_chain(self._settings.cert_file, self._settings.key_file)
        host, _, port = str(self._settings.host).removeprefix("https://").partition(":")
        link = Link(near, context.wrap_socket(socket.create_connection((host, int(port or 443))), server_hostname=host))
        link.far.settimeout(0.1)
        self._links.append(link)
        with contextlib.suppress(OSError, ValueError):
            while self._pass(link):
                pass
        link.close()
        self._links.remove(link)

    def _pass(self, link: Link) -> bool:
        """Carry what is there; False at the end."""
        ready = [link.far] if link.far.pending() else select.select([link.near, link.far], [], [], 1.0)[0]
        if link.stalled:
            time.sleep(0.05)
            return True
        for end in ready:
            try:
                data = end.recv(1 << 16)
            except TimeoutError:  # TLS spoke to itself
                continue
            if not data or not (self._ask(link, data) if end is link.near else self._give(link, data)):
                return False
        return True

    def _ask(self, link: Link, data: bytes) -> bool:
        if data.startswith(VERBS):
            link.request, link.given = data.split(b" HTTP/", 1)[0].decode(), 0
            self.asked.append(link.request)
            for what, told in self._answers.items():
                if told and what in link.request:
                    link.near.sendall(told.pop())
                    return True
        link.far.sendall(data)
        return True

    def _give(self, link: Link, data: bytes) -> bool:
        for what in [each for each in self._cuts if each in link.request]:
            if link.given + len(data) > self._cuts[what]:
                link.near.sendall(data[: self._cuts.pop(what) - link.given])
                return False
        link.given += len(data)
        link.near.sendall(data)
        return True
