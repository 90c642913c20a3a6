"""A proxy to the API server that holds one chosen request, before or after its answer, and then injects a fault."""

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from tests.cluster.wire import VERBS, Link, Wire
from torchyard.kube.kubeconfig import load_settings

Fault = Literal["500", "429", "401", "410", "reset", "black hole"]
SAID = {
    "500": "etcdserver: request timed out",
    "429": "too many requests, please try again later",
    "401": "Unauthorized",
    "410": "too old resource version",
}
ABORT = struct.pack("ii", 1, 0)  # close() then sends RST


class Gate(Wire):
    """The wire of one run; it calls the API server as the user of `context`."""

    def __init__(self, place: Path, context: str | None) -> None:
        super().__init__(place)
        self._settings, _ = load_settings(context)
        self.held = threading.Event()
        self._free = threading.Event()
        self._wanted: Callable[[str], bool] | None = None
        self._answered = False
        self._fault: Fault | None = None
        self._until = 0.0
        self._gone = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    # --- called by tests

    def hold(self, wanted: Callable[[str], bool], answered: bool) -> None:
        """Hold the first matching request, or the API server's answer to it, and then set the event `held`."""
        self._wanted, self._answered = wanted, answered

    def fail(self, fault: Fault, seconds: float) -> None:
        """Fail every request for some seconds, first the one that is held; open streams are broken off."""
        self._fault, self._until = fault, time.monotonic() + seconds
        if fault == "black hole":
            self.stall()
        else:
            for link in [each for each in self._links if fault == "reset" or "watch=" in each.request]:
                self._drop(link)
        self.release()

    def release(self) -> None:
        self._wanted = None
        self._free.set()

    def close(self) -> None:
        self.release()
        super().close()

    # --- forwarding

    def _ask(self, link: Link, data: bytes) -> bool:
        if data.startswith(VERBS):
            request = data.split(b" HTTP/", 1)[0].decode()
            if not self._answered:
                self._hold(request)
            if fault := self._failing(request):
                link.request = request
                return self._break(link, fault, data)
        return super()._ask(link, data)

    def _give(self, link: Link, data: bytes) -> bool:
        if self._answered and self._hold(link.request) and (fault := self._failing(link.request)):
            return self._break(link, fault, b"")
        return super()._give(link, data)

    def _hold(self, request: str) -> bool:
        """Hold this request if it is the wanted one; True if it was."""
        wanted = self._wanted
        if not wanted or self.held.is_set() or not wanted(request):
            return False
        self.held.set()
        self._free.wait()
        return True

    def _failing(self, request: str) -> Fault | None:
        if time.monotonic() > self._until or (self._fault == "410" and "watch=" not in request):
            return None
        return self._fault

    def _break(self, link: Link, fault: Fault, data: bytes) -> bool:
        """Give the client the fault instead of its answer; False if the connection ends."""
        if fault == "black hole":
            link.stalled = True
            return True
        if fault == "reset":
            self._drop(link)
            return False
        swallow(link.near, data)
        link.near.sendall(self._answer(fault))
        return False

    def _answer(self, fault: Fault) -> bytes:
        """An error answer; a 410 is alternately an event of the watch and an HTTP status."""
        status: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": int(fault)}
        status["message"] = SAID[fault]
        code = int(fault)
        if fault == "410":
            self._gone += 1
            code, status = (200, {"type": "ERROR", "object": status}) if self._gone % 2 else (code, status)
        text = json.dumps(status).encode() + b"\n"
        head = f"HTTP/1.1 {code} Told\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n"
        more = "Retry-After: 1\r\n" if fault == "429" else ""
        return f"{head}{more}Connection: close\r\n\r\n".encode() + text

    def _drop(self, link: Link) -> None:
        """Close a connection with RST, in the middle of its data."""
        with contextlib.suppress(OSError):
            link.near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
            link.near.close()
            link.far.close()


def swallow(near: socket.socket, data: bytes) -> None:
    """Read the rest of a request: if the connection closed before, the client would lose the answer."""
    head, _, body = data.partition(b"\r\n\r\n")
    sizes = [line.partition(b":")[2] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
    owed = int(sizes[0]) - len(body) if sizes else 0
    while owed > 0 and (more := near.recv(1 << 16)):
        owed -= len(more)
