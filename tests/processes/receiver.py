"""A real receiver of webhooks on the loopback interface."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """The messages that it received, and the status with which it responds; it does not respond while `is_hanging`."""

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        self.status = 200
        self.request_count = 0  # of those that were refused, too
        self.is_hanging = False
        self.stop_event = threading.Event()
        self.port = 0

    @property
    def address(self) -> str:
        """Its address as a URL of apprise."""
        return f"json://127.0.0.1:{self.port}/hook"

    @property
    def titles(self) -> list[str]:
        return [message["title"] for message in self.received]


@contextmanager
def run_receiver() -> Iterator[Receiver]:
    """Serve in a thread until the block ends."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.request_count += 1
            if receiver.is_hanging:
                receiver.stop_event.wait(60)
            elif receiver.status == 200:
                receiver.received.append(json.loads(body))
            self.send_response(receiver.status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.stop_event.set()
        server.shutdown()
        server.server_close()
