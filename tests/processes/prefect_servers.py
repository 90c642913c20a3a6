"""A Prefect server with a password and an empty database, for tests of deployments."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from scripts.processes import wait_for_result
from scripts.server import find_free_port, is_healthy
from torchyard.common.project_root import ROOT

PASSWORD = "a password of a test"


@contextmanager
def prefect_server(home: Path) -> Iterator[dict[str, str]]:
    """A Prefect server; yields the environment variables with which a process reaches it."""
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
