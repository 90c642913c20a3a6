"""The Prefect server: the one at PREFECT_API_URL, or else this folder's own server, which requires a password.

.prefect/          0700: other users' processes cannot read the password or the database
  password         the server requires it from every client and every browser; a new one at each start
  listener         the socket at which the worker's process borrows the server's port (listener.py)
  env              for a shell: the server's address and password, as environment variables
  database         the location of the server's data, if PREFECT_SERVER_DATABASE_CONNECTION_URL has named a PostgreSQL
"""

import contextlib
import os
import re
import secrets
import shlex
import socket
import sys
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from scripts.api import YardError, open_prefect_client
from scripts.processes import (
    DATABASE_VARIABLE,
    PREFECT_HOME,
    YARD_SCRIPT,
    YardProcess,
    find_yard_processes,
    start_yard_process,
    stop_yard_process,
    wait_for_result,
)

_PASSWORD_FILE = PREFECT_HOME / "password"
ENV_FILE = PREFECT_HOME / "env"
_DATABASE_FILE = PREFECT_HOME / "database"
# Long, because a busy machine is slow.
_START_TIMEOUT_S = 180
_RESPONSE_TIMEOUT_S = 60
# The user's settings for another server. They must not be sent to this folder's server.
_FOREIGN_SETTINGS = ("PREFECT_API_KEY", "PREFECT_PROFILE")


def choose_server() -> str:
    """Choose the API, set it in the environment of this process and of those that it starts, and return its address.

    Starts this folder's server if it is chosen and not running. Raises YardError if the server does not respond.
    """
    configured_url = os.environ.get("PREFECT_API_URL", "").rstrip("/")
    if configured_url and configured_url != read_last_address():
        os.environ["PREFECT_API_URL"] = configured_url
        with open_prefect_client(timeout_s=10) as client:
            client.read_work_pools(limit=1)
        print(f"Prefect server: {configured_url} (from PREFECT_API_URL)")
        return configured_url
    create_prefect_home()
    running = find_yard_processes().get("server")
    api_url = _wait_for_running_server(running) if running else _start_server()
    with open_prefect_client(timeout_s=10) as client:
        client.read_work_pools(limit=1)
    ui_url = api_url.removesuffix("/api")
    print(f"Prefect server: {ui_url} (this folder's own; the password for the browser: cat {_PASSWORD_FILE})")
    return api_url


def read_last_address() -> str:
    """The last address of this folder's own server; empty if it has not been started or the file is incomplete."""
    with contextlib.suppress(OSError):
        match = re.search(r"^export PREFECT_API_URL=(http://127\.0\.0\.1:\d+/api)$", ENV_FILE.read_text(), re.MULTILINE)
        if match:
            return match[1]
    return ""


def create_prefect_home() -> None:
    """Create the server's folder, which only this user can read. YardError if that is impossible."""
    try:
        PREFECT_HOME.mkdir(mode=0o700, exist_ok=True)
        PREFECT_HOME.chmod(0o700)
    except OSError as error:
        raise YardError(
            f"cannot create {PREFECT_HOME} ({error.strerror}): clone the project to your own folder"
        ) from error


def create_password() -> str:
    """A new password for the server: that of an earlier start may be known to a process that got its port."""
    password = secrets.token_urlsafe(32)
    write_private_file(_PASSWORD_FILE, password + "\n")
    return password


def read_password() -> str:
    """The password of the server that runs; a new one, which it refuses, if the file is missing or incomplete."""
    with contextlib.suppress(OSError):
        match = re.fullmatch(r"([\w-]{32,})\n", _PASSWORD_FILE.read_text())
        if match:
            return match[1]
    return create_password()


def use_own_server(api_url: str) -> None:
    """Make this process, and those that it starts, use this folder's own server, and write the file `env`."""
    for name in _FOREIGN_SETTINGS:
        os.environ.pop(name, None)
    unproxied_hosts = os.environ.get("NO_PROXY") or os.environ.get("no_proxy")
    unproxied_hosts = f"{unproxied_hosts},127.0.0.1" if unproxied_hosts else "127.0.0.1"
    os.environ["NO_PROXY"] = unproxied_hosts
    os.environ["no_proxy"] = unproxied_hosts
    os.environ |= {
        "PREFECT_HOME": str(PREFECT_HOME),
        "PREFECT_API_URL": api_url,
        "PREFECT_API_AUTH_STRING": read_password(),
    }
    password_line = f'export PREFECT_API_AUTH_STRING="$(cat {shlex.quote(str(_PASSWORD_FILE))})"'
    write_private_file(ENV_FILE, f"export PREFECT_API_URL={api_url}\n{password_line}\n")


def write_private_file(path: Path, text: str) -> None:
    """Write a file atomically; only this user can read it."""
    temp_path = path.with_suffix(".part")
    temp_path.unlink(missing_ok=True)
    with os.fdopen(os.open(temp_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temp_path.replace(path)


def get_server_port(server: YardProcess) -> int:
    """The port in the server's arguments."""
    return int(server.argv[server.argv.index("--port") + 1])


def _wait_for_running_server(server: YardProcess) -> str:
    """Wait for this folder's server, which is already running, and return the API's address."""
    port = get_server_port(server)
    api_url = f"http://127.0.0.1:{port}/api"
    use_own_server(api_url)
    wait_for_result(
        f"this folder's Prefect server (process {server.pid}) hangs (`make down` stops it): no response at {api_url}",
        lambda: is_healthy(port, server.pid),
        timeout_s=_RESPONSE_TIMEOUT_S,
    )
    if "PREFECT_SERVER_API_AUTH_STRING" not in server.environment:
        print("this server was started without a password: `make down` and `make up` start it with one")
    return api_url


def _start_server() -> str:
    """Start this folder's server, at its last port if that is free, and return the API's address.

    Raises YardError, with the end of the server's log, if the server exits or does not respond.
    """
    record_database()
    last_port = read_last_address().removesuffix("/api").rpartition(":")[2]
    port = int(last_port) if last_port and _is_port_free(int(last_port)) else find_free_port()
    api_url = f"http://127.0.0.1:{port}/api"
    password = create_password()
    use_own_server(api_url)
    print(f"starting a Prefect server at {api_url} ...", flush=True)
    command = [sys.executable, str(YARD_SCRIPT), "listen", "--port", str(port)]
    process = start_yard_process("server", command, {"PREFECT_SERVER_API_AUTH_STRING": password})
    try:
        wait_for_result(
            "the Prefect server has not responded",
            lambda: is_healthy(port, process.pid) or process.poll() is not None,
            timeout_s=_START_TIMEOUT_S,
        )
        if process.poll() is not None:
            raise YardError("the Prefect server exited during its start")
    except YardError as error:
        stop_yard_process("server")
        last_lines = (PREFECT_HOME / "server.log").read_text(errors="replace").splitlines()[-15:]
        raise YardError("\n  ".join([f"{error}; the end of {PREFECT_HOME}/server.log:", *last_lines])) from error
    return api_url


def record_database() -> None:
    """Record the database that the server is about to use, without its password.

    Raises YardError if the server had a PostgreSQL and would now start with an empty database.
    """
    database_url = os.environ.get(DATABASE_VARIABLE, "")
    if not database_url and _DATABASE_FILE.exists():
        raise YardError(
            f"this folder's server has its data in {_DATABASE_FILE.read_text().strip()}: set {DATABASE_VARIABLE} to "
            f"its address, or remove {_DATABASE_FILE} to start with an empty database in {PREFECT_HOME}"
        )
    if database_url:
        address = urlsplit(database_url)
        location = f"{address.hostname or 'a socket'}:{address.port or 5432}{address.path}"
        write_private_file(_DATABASE_FILE, f"{location}\n")


def is_healthy(port: int, pid: int) -> bool:
    """Whether exactly this process responds at the port: another process at the port must not get the password."""
    connection = HTTPConnection("127.0.0.1", port, timeout=3)
    try:
        connection.request("GET", "/api/health")
        return connection.getresponse().read(16) == b"true" and _is_port_holder(pid, port)
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _is_port_holder(pid: int, port: int) -> bool:
    """Whether a socket of the process listens on the port, by /proc/net/tcp and the process's descriptors."""
    sockets: set[str] = set()
    for line in Path("/proc/net/tcp").read_text(encoding="utf-8").splitlines()[1:]:
        _, local_address, _, state, *_, inode = line.split()[:10]
        if state == "0A" and local_address.endswith(f":{port:04X}"):  # 0A: LISTEN
            sockets.add(f"socket:[{inode}]")
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(link) in sockets:
                return True
    return False


def _is_port_free(port: int) -> bool:
    with socket.socket() as listener:
        return listener.connect_ex(("127.0.0.1", port)) != 0


def find_free_port() -> int:
    """A TCP port of 127.0.0.1 that no process uses now; another process may take it before the caller does."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
