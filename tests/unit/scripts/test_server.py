"""This folder's own Prefect server: its password, its address, and which process counts as it."""

import os
import shlex
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from scripts import processes, server
from scripts.api import YardError

IDLE = "import time\ntime.sleep(60)\n"


def test_password_is_for_this_user_alone(home: Path) -> None:
    """No other user may read the folder, the password, or the file that a shell sources to use it."""
    server.use_own_server("http://127.0.0.1:4321/api")
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (home, home / "password", home / "env")]
    assert modes == [0o700, 0o600, 0o600]


def test_shell_that_sources_env_reaches_the_server(home: Path) -> None:
    """`source .prefect/env` sets address and password, and the last address is read from that file."""
    server.use_own_server("http://127.0.0.1:4321/api")
    shell_script = f"source {shlex.quote(str(home / 'env'))}; echo $PREFECT_API_URL $PREFECT_API_AUTH_STRING"
    completed = subprocess.run(["bash", "-c", shell_script], env={}, capture_output=True, text=True, check=True)
    assert completed.stdout.split() == ["http://127.0.0.1:4321/api", server.read_password()]
    assert server.read_last_address() == "http://127.0.0.1:4321/api"


@pytest.mark.parametrize("content", ["", "x", "\0" * 44], ids=["empty", "half", "zeros"])
def test_incomplete_files_are_created_again(home: Path, content: str) -> None:
    """An incomplete password is replaced by a new one, and an incomplete address is ignored."""
    (home / "password").write_text(content)
    (home / "env").write_text(content)
    assert server.read_last_address() == ""
    assert len(server.read_password()) >= 32
    assert "\0" not in server.read_password()


def test_each_start_has_a_new_password(home: Path) -> None:
    """A new password replaces the last one, and clients that start from now on read it."""
    last_password = server.read_password()
    assert server.read_password() == last_password
    password = server.create_password()
    server.use_own_server("http://127.0.0.1:4321/api")
    assert password != last_password
    assert os.environ["PREFECT_API_AUTH_STRING"] == password


def test_keys_of_another_server_stay_away_from_ours(home: Path) -> None:
    """Our server is contacted without a proxy, and never gets the user's key for Prefect Cloud."""
    os.environ |= {"PREFECT_API_KEY": "pnu_secret", "NO_PROXY": "intranet"}
    server.use_own_server("http://127.0.0.1:4321/api")
    assert "PREFECT_API_KEY" not in os.environ
    assert os.environ["NO_PROXY"] == "intranet,127.0.0.1"


class HealthHandler(BaseHTTPRequestHandler):
    """Responds to every request that the server is healthy."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"true")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def healthy_port() -> Iterator[int]:
    """The port of such a server in this process."""
    http_server = HTTPServer(("127.0.0.1", 0), HealthHandler)
    threading.Thread(target=http_server.serve_forever, daemon=True).start()
    yield http_server.server_port
    http_server.shutdown()
    http_server.server_close()


def test_stranger_at_the_port_is_not_taken_for_the_server(healthy_port: int) -> None:
    """Only the started process counts as the server: another one at the port would get the password."""
    with subprocess.Popen([sys.executable, "-c", IDLE]) as other:
        assert server.is_healthy(healthy_port, os.getpid())
        assert not server.is_healthy(healthy_port, other.pid)
        other.kill()


def test_database_is_not_forgotten(home: Path) -> None:
    """A server that had its data in PostgreSQL is not started with an empty SQLite; its password is not stored."""
    os.environ[processes.DATABASE_VARIABLE] = "postgresql+asyncpg://ada:secret@db.lan:5433/prefect"
    server.record_database()
    del os.environ[processes.DATABASE_VARIABLE]
    with pytest.raises(YardError, match=r"has its data in db\.lan:5433/prefect: set PREFECT_SERVER_DATABASE"):
        server.record_database()
    assert not [path for path in home.iterdir() if "secret" in path.read_text()]


def test_server_without_postgresql_needs_nothing(home: Path) -> None:
    """By default the database is a file in the server's folder."""
    os.environ.pop(processes.DATABASE_VARIABLE, None)
    server.record_database()
    assert not (home / "database").exists()
