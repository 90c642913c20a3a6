"""A way to the API server that breaks as told, and counts what is asked: for faults that no healthy server has."""

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
    """One connection of a client, and its other half to the API server."""

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
    """Plain HTTP on this side, the API server's TLS on the other; `asked` holds every request line.

    Who asks is known by this machine's own credentials, until somebody else becomes the kubeconfig's user.
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
        """Write the kubeconfig for another user; the API server is then told of no other."""
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
        """Close every connection whose latest request has some text, in the middle of whatever it carries."""
        for link in [each for each in self._links if what in each.request]:
            link.close()

    def cut_after(self, what: str, size: int) -> None:
        """Close the next connection for such a request once it has carried so many bytes, and no other."""
        self._cuts[what] = size

    def slow(self, what: str, rate: float) -> None:
        """Carry the answers to such requests at so many bytes a second, each connection for itself."""
        self._rates[what] = rate

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

    def reset(self) -> None:
        """Break every connection as a machine does that has forgotten them: RST instead of an end."""
        for link in list(self._links):
            link.near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            link.near.close()
            link.close()

    def refuse(self) -> None:
        """Nobody listens any more, until `mend`."""
        self._stop()
        self.cut()

    def swallow(self) -> None:
        """Forget every connection without a word, and be silent on new ones, until `mend`."""
        self.hole = True
        self.stall()

    def answer(self, what: str, status: int, body: dict[str, Any] | bytes, times: int = 1, **headers: str) -> None:
        """Answer the next such requests in the API server's place; a header is spelled `Retry_After`."""
        text = body if isinstance(body, bytes) else json.dumps(body).encode() + b"\n"
        told = {"Content-Type": "application/json", "Content-Length": str(len(text)), **headers}
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in told.items())
        self._answers[what] = [f"HTTP/1.1 {status} Told\r\n{head}\r\n".encode() + text] * times

    def mend(self) -> None:
        """End what lasts: being away, delays, holes and answers. Forgotten connections stay so."""
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
        with contextlib.suppress(OSError):  # wakes who waits for a connection, and holds the port
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

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
        if self._settings.cert_file and self._user is None:
            context.load_cert_chain(self._settings.cert_file, self._settings.key_file)
        host, _, port = str(self._settings.host).removeprefix("https://").partition(":")
        try:
            far = socket.create_connection((host, int(port or 443)))
            link = Link(near, context.wrap_socket(far, server_hostname=host))
        except OSError:  # the API server itself is away
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
