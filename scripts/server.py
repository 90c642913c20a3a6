"""The Prefect server: the one that PREFECT_API_URL names, else one of this folder's own behind a password.

.prefect/          0700: nobody else's processes reach the server, or read its database
  password         what the server asks every client for, and its pages every browser
  env              for a shell: the server's address and password, as environment variables
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

from scripts.api import YardError, prefect_client
from scripts.processes import HOME, Process, detach, end, started, until

PASSWORD, ENV = HOME / "password", HOME / "env"
START_S, ANSWER_S = 180, 60  # a busy machine is slow, not wrong
# Settings of the user's own that must not reach a server that is not theirs.
FOREIGN = ("PREFECT_API_KEY", "PREFECT_PROFILE")


def choose_server() -> str:
    """The API that is used, in the environment of this process and of those that it starts."""
    named = os.environ.get("PREFECT_API_URL", "").rstrip("/")
    if named and named != remembered():
        os.environ["PREFECT_API_URL"] = named
        with prefect_client(timeout_s=10) as client:
            client.read_work_pools(limit=1)
        print(f"Prefect server: {named} (PREFECT_API_URL says so)")
        return named
    make_home()
    running = started().get("server")
    api = address(running) if running else start_server()
    with prefect_client(timeout_s=10) as client:
        client.read_work_pools(limit=1)
    page = api.removesuffix("/api")
    print(f"Prefect server: {page} (this folder's own; in a browser it asks for the password: cat {PASSWORD})")
    return api


def remembered() -> str:
    """The address that this folder's own server had last; "" where it had none."""
    with contextlib.suppress(OSError):
        if found := re.search(r"^export PREFECT_API_URL=(http://127\.0\.0\.1:\d+/api)$", ENV.read_text(), re.M):
            return found[1]
    return ""


def make_home() -> None:
    """The folder of the server, for this user alone."""
    try:
        HOME.mkdir(mode=0o700, exist_ok=True)
        HOME.chmod(0o700)
    except OSError as error:
        raise YardError(
            f"{HOME} cannot be used ({error.strerror}): clone the project to a folder of your own"
        ) from error


def password() -> str:
    """What the server asks for: made once, and made again where a crash has left less."""
    with contextlib.suppress(OSError):
        if found := re.fullmatch(r"([\w-]{32,})\n", PASSWORD.read_text()):
            return found[1]
    made = secrets.token_urlsafe(32)
    _write(PASSWORD, made + "\n")
    return made


def use_own(api: str) -> None:
    """Have this process, and those that it starts, speak to this folder's own server."""
    for name in FOREIGN:
        os.environ.pop(name, None)
    direct = [*filter(None, [os.environ.get("NO_PROXY") or os.environ.get("no_proxy")]), "127.0.0.1"]
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = ",".join(direct)
    os.environ |= {"PREFECT_HOME": str(HOME), "PREFECT_API_URL": api, "PREFECT_API_AUTH_STRING": password()}
    secret = f'export PREFECT_API_AUTH_STRING="$(cat {shlex.quote(str(PASSWORD))})"'
    _write(ENV, f"export PREFECT_API_URL={api}\n{secret}\n")


def _write(path: Path, text: str) -> None:
    """Whole or not at all, and for this user alone."""
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def port_of(server: Process) -> int:
    return int(server.words[server.words.index("--port") + 1])


def address(server: Process) -> str:
    """The API of this folder's server, which runs already."""
    port = port_of(server)
    use_own(api := f"http://127.0.0.1:{port}/api")
    until(
        f"this folder's Prefect server (process {server.pid}) does not answer at {api}: `make down` ends it; no answer",
        lambda: healthy(port, server.pid),
        ANSWER_S,
    )
    if "PREFECT_SERVER_API_AUTH_STRING" not in server.environment:
        print("this server was started without a password: `make down` and `make up` give it one")
    return api


def start_server() -> str:
    last = remembered().removesuffix("/api").rpartition(":")[2]
    port = int(last) if last and free(int(last)) else free_port()
    use_own(api := f"http://127.0.0.1:{port}/api")
    print(f"starting a Prefect server at {api} ...", flush=True)
    command = [str(Path(sys.executable).parent / "prefect"), "server", "start", "--host", "127.0.0.1"]
    process = detach("server", [*command, "--port", str(port)], {"PREFECT_SERVER_API_AUTH_STRING": password()})
    try:
        until(
            "the Prefect server did not answer",
            lambda: healthy(port, process.pid) or process.poll() is not None,
            START_S,
        )
        if process.poll() is not None:
            raise YardError("the Prefect server ended at its start")
    except YardError as error:
        end("server")
        last_lines = (HOME / "server.log").read_text(errors="replace").splitlines()[-15:]
        raise YardError("\n  ".join([f"{error}; the end of {HOME}/server.log:", *last_lines])) from error
    return api


def healthy(port: int, pid: int) -> bool:
    """Whether that very process answers there. The password goes to nobody who was faster at the port."""
    connection = HTTPConnection("127.0.0.1", port, timeout=3)
    try:
        connection.request("GET", "/api/health")
        return connection.getresponse().read(16) == b"true" and _holds(pid, port)
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _holds(pid: int, port: int) -> bool:
    lines = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="utf-8").splitlines()[1:]]
    sockets = {f"socket:[{each[9]}]" for each in lines if each[3] == "0A" and each[1].endswith(f":{port:04X}")}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(link) in sockets:
                return True
    return False


def free(port: int) -> bool:
    with socket.socket() as listener:
        return listener.connect_ex(("127.0.0.1", port)) != 0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
