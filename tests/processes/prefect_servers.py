"""Prefect servers with an empty database, for tests."""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import prefect
import pytest
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from scripts.processes import wait_for_result
from scripts.server import find_free_port, is_healthy
from torchyard.common.project_root import ROOT

PASSWORD = "a password of a test"
# An empty database, as Prefect's migrations leave it: they need five seconds of a processor for each server.
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchyard" / "prefect"
_EMPTY_DATABASE = _CACHE / f"{prefect.__version__}.db"


def copy_empty_database(path: Path) -> None:
    """Copy an empty database of this version of Prefect, which the first caller on this machine creates."""
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the others wait for the one that creates it
        if not _EMPTY_DATABASE.exists():
            _create_empty_database()
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(_EMPTY_DATABASE, path)


def _create_empty_database() -> None:
    with tempfile.TemporaryDirectory(dir=_CACHE) as home:
        command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "-y"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        environment["PREFECT_HOME"] = home
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        Path(home, "prefect.db").replace(_EMPTY_DATABASE)


@contextmanager
def prefect_server(home: Path) -> Iterator[dict[str, str]]:
    """A Prefect server with a password; yields the environment variables with which a process reaches it."""
    copy_empty_database(home / "prefect.db")
    port = find_free_port()
    argv = [str(Path(sys.executable).parent / "prefect"), "server", "start", "--host", "127.0.0.1"]
    api_url = f"http://127.0.0.1:{port}/api"
    settings = {"PREFECT_SERVER_API_AUTH_STRING": PASSWORD, "PREFECT_UI_API_URL": api_url}
    process = subprocess.Popen(
        [*argv, "--port", str(port)],
        env=os.environ | {"PREFECT_HOME": str(home)} | settings,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for_result("the server did not answer", lambda: is_healthy(port, process.pid), timeout_s=400)
        yield {"PREFECT_HOME": str(home), "PREFECT_API_URL": api_url, "PREFECT_API_AUTH_STRING": PASSWORD}
    finally:
        process.terminate()
        process.wait()


@contextmanager
def use_prefect_server(server: dict[str, str]) -> Iterator[None]:
    """Make this process, which has already imported Prefect, use the server."""
    names = {PREFECT_API_URL: "PREFECT_API_URL", PREFECT_API_AUTH_STRING: "PREFECT_API_AUTH_STRING"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.items():
            patch.setenv(name, value)
        with temporary_settings({setting: server[name] for setting, name in names.items()}):
            yield
