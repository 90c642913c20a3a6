"""A fake Prefect server: one flow run, whose state a test sets, over HTTP on loopback."""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prefect.settings import PREFECT_API_URL, temporary_settings

from tests.conftest import RUN_ID

STATE = {"id": RUN_ID, "timestamp": "2026-01-01T00:00:00Z", "state_details": {}}


class FakePrefect:
    """A server with one flow run, in the state and with the HTTP status that the test sets.

    tests/contracts/prefect_server.py checks that it behaves like a real one. It accepts every request but those that
    read another flow run (404), and responds once `answering` is set. `run_fields` are further fields of the flow run.
    Its only state is the one that the test or a request has set last. `clock_ahead_s` is how far its clock is ahead.
    `responses` are bodies by the end of a path; None is a 404. The next `refusals` PATCH requests get 503, as from a
    server whose SQLite is locked; the next `lost_responses` artifacts are recorded, and their connections end without a
    response. It serves in daemon threads from its creation until `close`; they append each
    successful change to the lists below.
    """

    def __init__(self) -> None:
        self.answering = threading.Event()
        self.status = 200
        self.state = "RUNNING"
        self.clock_ahead_s = 0.0
        self.run_fields: dict[str, Any] = {}
        self.responses: dict[str, Any] = {}
        self.artifact_updates: list[Any] = []  # the new data of artifacts
        self.updates: list[Any] = []  # other changes, of a flow run or a task run
        self.deleted: list[str] = []
        self.posted: list[tuple[str, Any]] = []
        self.requested_states: list[str] = []
        self.artifacts: list[Any] = []
        self.requested_paths: list[str] = []  # of all requests
        self.refusals = self.lost_responses = 0
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"server_of": self}))
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def request_count(self) -> int:
        return len(self.requested_paths)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}/api"

    @property
    def current_state(self) -> dict[str, Any]:
        return STATE | {"type": self.state, "name": self.state.title()}

    @property
    def flow_run(self) -> dict[str, Any]:
        run = {
            "id": RUN_ID,
            "flow_id": RUN_ID,
            "name": "a-run",
            "state": self.current_state,
            "created": STATE["timestamp"],
        }
        return run | self.run_fields

    def close(self) -> None:
        self.answering.set()
        self._http.shutdown()
        self._http.server_close()


class Handler(BaseHTTPRequestHandler):
    """Responds to a request once its server is `answering`."""

    server_of: FakePrefect

    def do_GET(self) -> None:
        # events: Prefect's own thread, at any time
        if any(part in self.path for part in ("csrf-token", "no-such-path", "/events/")):
            return self.send_error(404)
        run_id = self.path.rpartition("/flow_runs/")[2]
        is_other_run = "/flow_runs/" in self.path and "/" not in run_id and run_id != RUN_ID
        is_list = self.path.partition("?")[0].endswith("/flow_run_states/")
        default = [self.server_of.current_state] if is_list else self.server_of.flow_run
        self._answer(self._find(None if is_other_run else default))
        return None

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server_of.posted.append((self.path, body))
        accepted = {"state": None, "status": "ACCEPT", "details": {"type": "accept_details"}}
        default: Any = [] if self.path.endswith("/filter") else accepted
        if self.path.endswith("/artifacts/filter"):
            default = self._select_artifacts(body["artifacts"])
        if self.path.endswith("/artifacts/"):
            return self._answer(body | {"id": RUN_ID}, lambda: self.server_of.artifacts.append(body))
        new_states = [body["state"]] if self.path.endswith("/set_state") else []
        self._answer(self._find(default), lambda: self._set_states(new_states))
        return None

    def _set_states(self, states: list[dict[str, Any]]) -> None:
        for state in states:
            self.server_of.requested_states.append(state["name"])
            self.server_of.state = state["type"]

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server_of
        self._answer(
            {}, lambda: server.artifact_updates.append(body["data"]) if "data" in body else server.updates.append(body)
        )

    def do_DELETE(self) -> None:
        self._answer({}, lambda: self.server_of.deleted.append(self.path.rpartition("/")[2]))

    def _select_artifacts(self, artifact_filter: dict[str, Any]) -> list[dict[str, Any]]:
        """The artifacts of the flow runs that the filter names."""
        flow_runs = artifact_filter["flow_run_id"]["any_"]
        return [item | {"id": RUN_ID} for item in self.server_of.artifacts if item["flow_run_id"] in flow_runs]

    def _find(self, default: Any) -> Any:
        """The body that the test has set for this path, or the default."""
        path = self.path.partition("?")[0]
        for suffix, body in self.server_of.responses.items():
            if path.endswith(suffix):
                return body
        return default

    def _answer(self, body: Any, record: Callable[[], object] | None = None) -> None:
        """Respond with the server's status; `record` is called first if that is 200, so that the caller finds it."""
        self.server_of.requested_paths.append(self.path)
        self.server_of.answering.wait()
        status = 404 if body is None else self.server_of.status
        if self.command == "PATCH" and self.server_of.refusals:
            self.server_of.refusals -= 1
            status = 503
        data = json.dumps({"detail": "Flow run not found"} if status == 404 else body).encode()
        if status == 200 and record is not None:
            record()
        if self.path.endswith("/artifacts/") and status == 200 and self.server_of.lost_responses:
            self.server_of.lost_responses -= 1
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with contextlib.suppress(OSError):  # the caller has given up
            self.wfile.write(data)

    def date_time_string(self, timestamp: float | None = None) -> str:
        """The `Date` of a response."""
        return super().date_time_string((timestamp or time.time()) + self.server_of.clock_ahead_s)

    def log_message(self, *_: Any) -> None:
        """Log nothing to stderr."""


@contextlib.contextmanager
def run_fake_prefect() -> Iterator[FakePrefect]:
    """A fake server that responds, and that this process uses until the block ends."""
    server = FakePrefect()
    server.answering.set()
    os.environ["PREFECT_API_URL"] = server.url
    with temporary_settings({PREFECT_API_URL: server.url}):
        yield server
    server.close()
