"""A proxy to the API server that holds one chosen request, before or after its response, and then injects a fault."""

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from tests.cluster.fault_proxy import VERBS, FaultProxy, Link
from torchyard.kube.kubeconfig import load_settings

Fault = Literal["500", "429", "401", "410", "reset", "black hole", "404 page", "hidden namespace", "empty list"]
ERROR_MESSAGES = {
    "500": "etcdserver: request timed out",
    "429": "too many requests, please try again later",
    "401": "Unauthorized",
    "410": "too old resource version",
}
DEFAULT_BACKEND_PAGE = b"default backend - 404"
LINGER_FOR_RST = struct.pack("ii", 1, 0)  # close() then sends RST


class Gate(FaultProxy):
    """The proxy of one run; it calls the API server as the user of `context`.

    A test calls `hold` before the run starts, waits for `request_held`, and then calls `fail` or `release`. The
    connection's thread waits meanwhile; requests on other connections pass. `close` releases it as well.
    """

    def __init__(self, folder: Path, context: str | None) -> None:
        super().__init__(folder)
        self._settings, _ = load_settings(context)
        self.request_held = threading.Event()
        self._released = threading.Event()
        self._matches: Callable[[str], bool] | None = None
        self._hold_response = False
        self._fault: Fault | None = None
        self._fault_until = 0.0
        self._expired_count = 0

    @property
    def address(self) -> str:
        """The proxy's address, as a kubeconfig's server."""
        return f"http://127.0.0.1:{self.port}"

    # --- called by tests, from their own thread

    def hold(self, matches: Callable[[str], bool], *, hold_response: bool) -> None:
        """Hold the first request that matches, or the API server's response to it; then set `request_held`."""
        self._matches = matches
        self._hold_response = hold_response

    def fail(self, fault: Fault, *, duration_s: float) -> None:
        """Fail every request for `duration_s`, first the one that is held; open streams are broken off."""
        self._fault = fault
        self._fault_until = time.monotonic() + duration_s
        if fault == "black hole":
            self.stall()
        else:
            for link in list(self._links):
                if fault == "reset" or "watch=" in link.request:
                    self._reset(link)
        self.release()

    def release(self) -> None:
        """Let the held request continue, and hold no other."""
        self._matches = None
        self._released.set()

    def close(self) -> None:
        self.release()
        super().close()

    # --- forwarding

    def forward_request(self, link: Link, data: bytes) -> bool:
        if data.startswith(VERBS):
            request = data.split(b" HTTP/", 1)[0].decode()
            if not self._hold_response:
                self._hold(request)
            fault = self._find_fault(request)
            if fault:
                link.request = request
                return self._inject(link, fault, data)
        return super().forward_request(link, data)

    def forward_response(self, link: Link, data: bytes) -> bool:
        if self._hold_response and self._hold(link.request):
            fault = self._find_fault(link.request)
            if fault:
                return self._inject(link, fault, b"")
        return super().forward_response(link, data)

    def _hold(self, request: str) -> bool:
        """Hold this request if it matches; return True if it was held."""
        matches = self._matches
        if not matches or self.request_held.is_set() or not matches(request):
            return False
        self.request_held.set()
        self._released.wait()
        return True

    def _find_fault(self, request: str) -> Fault | None:
        """The fault of this request now; None if it is forwarded."""
        if time.monotonic() > self._fault_until:
            return None
        match self._fault:
            case "410":
                is_affected = "watch=" in request
            case "empty list":
                is_affected = request.startswith("GET ") and "labelSelector=" in request and "watch=" not in request
            case "hidden namespace":
                is_affected = "/namespaces/" in request
            case _:
                is_affected = True
        return self._fault if is_affected else None

    def _inject(self, link: Link, fault: Fault, data: bytes) -> bool:
        """Give the client the fault instead of its response; return False if the connection ends."""
        if fault == "black hole":
            link.is_stalled = True
            return True
        if fault == "reset":
            self._reset(link)
            return False
        drain_request(link.client_socket, data)
        link.client_socket.sendall(self._build_response(fault))
        return False

    def _build_response(self, fault: Fault) -> bytes:
        """An error response; a 410 is alternately an event of the watch and an HTTP status."""
        match fault:
            case "404 page":
                return build_http_response(404, DEFAULT_BACKEND_PAGE, "Content-Type: text/plain")
            case "hidden namespace":
                details = {"name": "hidden", "kind": "namespaces"}
                hidden = build_status(404, "the namespace is hidden") | {"reason": "NotFound", "details": details}
                return build_http_response(404, encode_json(hidden))
            case "empty list":
                empty = {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}
                return build_http_response(200, encode_json(empty))
            case "410":
                content = build_status(410, ERROR_MESSAGES[fault])
                self._expired_count += 1
                if self._expired_count % 2:
                    return build_http_response(200, encode_json({"type": "ERROR", "object": content}))
                return build_http_response(410, encode_json(content))
            case _:
                code = int(fault)
                content = build_status(code, ERROR_MESSAGES[fault])
                extra_headers = ("Retry-After: 1",) if fault == "429" else ()
                return build_http_response(code, encode_json(content), *extra_headers)

    def _reset(self, link: Link) -> None:
        """Close a connection with RST, in the middle of its data."""
        with contextlib.suppress(OSError):
            link.client_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_FOR_RST)
            link.client_socket.close()
            link.server_socket.close()


def build_status(code: int, message: str) -> dict[str, Any]:
    """A Kubernetes Status that reports a failure."""
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}


def encode_json(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode() + b"\n"


def build_http_response(code: int, body: bytes, *extra_headers: str) -> bytes:
    """A response after which the connection closes."""
    headers = [f"Content-Length: {len(body)}", "Connection: close", *extra_headers]
    if not any(header.startswith("Content-Type:") for header in extra_headers):
        headers.append("Content-Type: application/json")
    return "\r\n".join([f"HTTP/1.1 {code} Fault", *headers, "", ""]).encode() + body


def drain_request(client_socket: socket.socket, data: bytes) -> None:
    """Read the rest of a request: if the connection closed before, the client would lose the response."""
    header, _, body = data.partition(b"\r\n\r\n")
    sizes = [line.partition(b":")[2] for line in header.lower().split(b"\r\n") if line.startswith(b"content-length")]
    remaining_bytes = int(sizes[0]) - len(body) if sizes else 0
    while remaining_bytes > 0:
        chunk = client_socket.recv(1 << 16)
        if not chunk:
            return
        remaining_bytes -= len(chunk)
