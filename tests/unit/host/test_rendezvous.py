"""The query of a rendezvous store: the status of its response, or why there is none."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from torchyard.host import rendezvous


class _Store(BaseHTTPRequestHandler):
    """Serves /v2/keys, and nothing else."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/v2/keys" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def store_url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Store) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_status_of_the_response_is_reported(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The status is that of the store itself, also if a proxy is configured and it is an error."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert rendezvous.query_store(f"{store_url}/v2/keys") == {"code": 200}
    assert rendezvous.query_store(f"{store_url}/v3") == {"code": 404}


def test_missing_store_is_an_error() -> None:
    """A refused connection is reported as an error, on the command line too."""
    output = subprocess.check_output([sys.executable, rendezvous.__file__, "http://127.0.0.1:1/v2/keys"])
    assert "Connection refused" in json.loads(output)["error"]


def test_another_service_is_an_error() -> None:
    """A port at which something else answers is no store, and no error of this program."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")

        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        response = rendezvous.query_store(f"http://127.0.0.1:{server.getsockname()[1]}/v2/keys")
        thread.join()
    assert response == {"error": "BadStatusLine: SSH-2.0-OpenSSH_9.6"}
    assert "InvalidURL" in rendezvous.query_store("http://127.0.0.1:port/v2/keys")["error"]
