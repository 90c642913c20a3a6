"""A real receiver of webhooks on the loopback interface."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """What it got, and what it answers with; `hangs` until the test is over."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.status = 200
        self.hangs = False
        self.over = threading.Event()
        self.port = 0

    @property
    def address(self) -> str:
        """As apprise spells it."""
        return f"json://127.0.0.1:{self.port}/hook"

    @property
    def titles(self) -> list[str]:
        return [each["title"] for each in self.got]


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Serve until the block ends."""
    made = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if made.hangs:
                made.over.wait(60)
            elif made.status == 200:
                made.got.append(json.loads(body))
            self.send_response(made.status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.over.set()
        server.shutdown()
        server.server_close()
