"""The query of a rendezvous store: the status of its response, or why there is none."""

import json
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
