"""A run and its Prefect server: what is told and asked goes through a mailbox, and nobody waits for it."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import UUID

import pytest
from httpx import HTTPStatusError
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.settings import PREFECT_API_URL, temporary_settings

from tasks import reporter
from tasks.flow_states import final_state, open_bounded_client, report_state
from tasks.reporter import PrefectReporter
from tests.conftest import RUN_ID
from tests.waiting import until
from torchyard.run.signals import CancelRequested

STATE = {"id": RUN_ID, "timestamp": "2026-01-01T00:00:00Z", "state_details": {}}


class Server:
    """A Prefect server of which one run's state and some artifacts are all; while `hanging` it accepts, and is mute."""

    def __init__(self) -> None:
        self.answering, self.status, self.state = threading.Event(), 200, "RUNNING"
        self.patched: list[Any] = []
        self.set_to: list[str] = []
        self.asked = 0
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"server_of": self}))
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}/api"

    def close(self) -> None:
        self.answering.set()
        self._http.shutdown()
        self._http.server_close()


class Handler(BaseHTTPRequestHandler):
    """Answers once its server does."""

    server_of: Server

    def do_GET(self) -> None:
        if "csrf-token" in self.path:
            return self.send_error(404)
        state = {**STATE, "type": self.server_of.state, "name": self.server_of.state.title()}
        run = {"id": RUN_ID, "flow_id": RUN_ID, "name": "a-run", "state": state, "created": STATE["timestamp"]}
        self._answer(run)
        return None

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = {"state": None, "status": "ACCEPT", "details": {"type": "accept_details"}}
        if self._answer(answer) and self.path.endswith("/set_state"):
            self.server_of.set_to.append(body["state"]["name"])

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._answer({}):
            self.server_of.patched.append(body["data"])

    def _answer(self, body: dict[str, Any]) -> bool:
        self.server_of.asked += 1
        self.server_of.answering.wait()
        said, status = json.dumps(body).encode(), self.server_of.status
        self.send_response(status)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        with contextlib.suppress(OSError):  # the caller has given up
            self.wfile.write(said)
        return status == 200

    def log_message(self, *_: Any) -> None:
        """Not to stderr."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that hangs until it is told to answer."""
    for name in ("_CALL_TIMEOUT_S", "_POLL_INTERVAL_S", "_RETRY_INTERVAL_S", "_SIGNAL_TIMEOUT_S"):
        monkeypatch.setattr(reporter, name, 0.3)
    made = Server()
    with temporary_settings({PREFECT_API_URL: made.url}):
        yield made
    made.close()


def value(number: float) -> Callable[[SyncPrefectClient], None]:
    """A call that sets the bar of a run."""

    def call(client: SyncPrefectClient) -> None:
        client._client.patch("/artifacts/a", json=ArtifactUpdate(data=number).model_dump(mode="json"))

    return call


def test_latest_value_wins_where_prefect_hangs(server: Server) -> None:
    """Of all that was said to a server that hangs, the newest value alone arrives once it answers."""
    with PrefectReporter(RUN_ID) as told:
        told.send("bar", value(1.0))
        until(lambda: server.asked > 2)
        done = [told.send("bar", value(float(number))) for number in range(2, 100)][-1]
        server.answering.set()
        done.result(30)
        assert 99.0 in server.patched
        assert len(set(server.patched)) <= 3  # what was on its way, and had been given up, may still arrive


def test_unreachable_prefect_cancels_nothing(server: Server) -> None:
    """A look that is not answered says nothing about a cancel, and the run goes on."""
    with PrefectReporter(RUN_ID) as told:
        until(lambda: server.asked > 2)
        told.check_cancelled()
        assert not told.is_cancelled()


def test_cancel_is_found_once_prefect_answers(server: Server) -> None:
    """A cancel that came while the server hung ends the run as soon as the server answers."""
    server.state = "CANCELLING"
    with PrefectReporter(RUN_ID) as told:
        until(lambda: server.asked > 2)
        told.check_cancelled()
        server.answering.set()
        until(told.is_cancelled)
        with pytest.raises(CancelRequested):
            until(told.check_cancelled)


@pytest.mark.parametrize(("status", "kept"), [(503, True), (500, True), (422, False), (404, False)])
def test_what_prefect_refuses_is_not_said_again(server: Server, status: int, kept: bool) -> None:
    """A call is repeated while the server is in trouble, and dropped where it says no."""
    server.status = status
    server.answering.set()
    with PrefectReporter(RUN_ID) as told:
        done = told.send("bar", value(1.0))
        until(lambda: server.asked > 4)
        assert done.done() is not kept
        server.status = 200
        until(done.done)
        assert server.patched == ([1.0] if kept else [])


def test_busy_prefect_keeps_nobody_who_looks_after_a_lost_run(server: Server) -> None:
    """A guard's call is made once, where Prefect's own client would repeat it for a minute: the guard looks again."""
    server.status = 503
    server.answering.set()
    with open_bounded_client() as client, pytest.raises(HTTPStatusError):
        client.read_flow_run(UUID(RUN_ID))
    assert server.asked == 1


def test_end_is_told_again_to_a_prefect_that_was_busy(server: Server) -> None:
    """Nobody else would tell it: the run would be Running for ever."""
    server.status = 503
    server.answering.set()
    threading.Timer(0.5, lambda: setattr(server, "status", 200)).start()
    report_state(RUN_ID, final_state("swept", "it was lost"))
    assert server.set_to == ["Swept"]
