"""The listening socket of the server outlives it, and is held by every process that uses the port."""

import contextlib
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import listener
from scripts.api import YardError
from tests.processes.kept_servers import kept_server
from tests.support.waiting import wait_until

SERVER = """
import socket, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Healthy(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"true")

server = HTTPServer(("127.0.0.1", 0), Healthy, bind_and_activate=False)
server.socket = socket.socket(fileno=int(sys.argv[1]))
server.serve_forever()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "server.py"
    path.write_text(SERVER)
    return path


@pytest.fixture
def deep_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose path is longer than that of a Unix socket can be."""
    folder = tmp_path / ("d" * 120)
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(listener, "PREFECT_HOME", folder)
    return folder


def test_server_that_dies_is_started_again_on_the_same_socket(deep_home: Path, script: Path) -> None:
    """While no server runs, no other process gets its port; then another server responds at it."""
    with kept_server(deep_home, script) as server:
        pid = server.find_server()
        os.kill(pid, 9)
        assert not server.is_port_free_for_others()
        wait_until(lambda: server.find_server() not in (0, pid))
        wait_until(lambda: server.request() == 200)


def test_port_is_held_by_a_borrower(deep_home: Path, script: Path) -> None:
    """A borrower notices that the server is no longer kept running, and until it ends nobody gets the port."""
    with kept_server(deep_home, script) as server:
        borrowed = listener.BorrowedListener()
        assert borrowed.is_server_kept()
        os.kill(server.find_server(), 9)
        server.keeper.kill()
        wait_until(lambda: not borrowed.is_server_kept())
        assert not server.is_port_free_for_others()
        borrowed.close()
        assert server.is_port_free_for_others()


def test_borrower_may_have_many_open_files(deep_home: Path, script: Path) -> None:
    """The number of files that a borrower has open does not matter: select() takes no descriptor from 1,024 on."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft_limit, _ = resource.prlimit(0, resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    with kept_server(deep_home, script), contextlib.ExitStack() as open_files:
        open_files.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft_limit, hard_limit))
        for _ in range(1024):
            open_files.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        borrowed = listener.BorrowedListener()
        assert borrowed.is_server_kept()
        borrowed.close()


def test_nothing_can_be_borrowed_without_a_keeper(deep_home: Path) -> None:
    """Without the process that holds the socket, the error names the reason."""
    with pytest.raises(YardError, match="no process of this folder keeps its server running"):
        listener.BorrowedListener()


def test_server_that_never_responds_is_not_started_again(deep_home: Path, script: Path) -> None:
    """A server that exits at once ends the process with its exit code, for `make up` to report."""
    script.write_text("import sys; sys.exit(3)")
    code = (
        "import sys; from pathlib import Path; from scripts import listener; "
        "listener.PREFECT_HOME, listener.SERVER_SCRIPT = map(Path, sys.argv[1:]); "
        "sys.exit(listener.keep_server_running(0))"
    )
    assert subprocess.run([sys.executable, "-c", code, str(deep_home), str(script)], check=False).returncode == 3


def test_port_that_is_in_use_is_an_error() -> None:
    """The port of another process is not shared."""
    with listener.open_listener(0) as first, pytest.raises(OSError, match="in use"):
        listener.open_listener(first.getsockname()[1])
