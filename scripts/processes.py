"""Processes that outlive the command that starts them: this folder's Prefect server and its worker.

They are found in /proc alone, by arguments and environment: no file can be torn, or name a process id used again.
"""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from scripts.api import YardError
from torchyard.common.identity import holder_identity
from torchyard.common.project_root import ROOT

PREFECT_HOME = ROOT / ".prefect"
DATABASE_VARIABLE = "PREFECT_SERVER_DATABASE_CONNECTION_URL"  # holds a password, and is for the server alone
YARD_SCRIPT = ROOT / "scripts" / "yard.py"
FORMER_WORKER_NAME = f"torchyard {ROOT} on {socket.gethostname()}".replace("/", "-")  # its name in the previous version


class YardProcess(NamedTuple):
    """A running server or worker of this folder."""

    pid: int
    argv: list[str]
    environment: dict[str, str]


def get_worker_name() -> str:
    """The name of our worker, which no other one in its pool has, even in a container with the same path.

    Prefect calls a worker ONLINE for 90 s after its death: the name tells ours from others.
    """
    return f"torchyard {holder_identity(str(PREFECT_HOME / 'worker'))}".replace("/", "-")


def find_yard_processes(skipped_pid: int = 0) -> dict[str, YardProcess]:
    """This folder's running `server`, `worker` and `service`, each by one of its processes but the skipped one."""
    processes: dict[str, YardProcess] = {}
    for folder in Path("/proc").iterdir():
        if folder.name == str(skipped_pid) or not folder.name.isdigit():
            continue
        if (process := _read_process(folder)) and (name := _identify_process(process)):
            processes.setdefault(name, process)
    return processes


def _read_process(folder: Path) -> YardProcess | None:
    try:
        if folder.stat().st_uid != os.getuid():
            return None
        argv = (folder / "cmdline").read_text(errors="replace").split("\0")
        pairs = (folder / "environ").read_text(errors="surrogateescape").split("\0")
    except OSError:
        return None
    return YardProcess(int(folder.name), argv, dict(pair.split("=", 1) for pair in pairs if "=" in pair))


def _identify_process(process: YardProcess) -> str:
    if get_worker_name() in process.argv or process.argv[1:3] == [str(YARD_SCRIPT), "tend"]:
        return "worker"
    if process.argv[1:3] == [str(YARD_SCRIPT), "serve"]:
        return "service"
    is_server = process.argv[2:4] == ["server", "start"] and process.environment.get("PREFECT_HOME") == str(
        PREFECT_HOME
    )
    return "server" if is_server else ""


def start_yard_process(
    name: str, command: list[str], environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own; its output goes to NAME.log."""
    log_fd = os.open(PREFECT_HOME / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    # A worker that inherits an ignored SIGINT does not end on SIGTERM.
    old_handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log_fd,
            stderr=log_fd,
            start_new_session=True,
            cwd=ROOT,
            env={**(os.environ if name == "server" else build_worker_environment()), **(environment or {})},
        )
    finally:
        signal.signal(signal.SIGINT, old_handler)
        os.close(log_fd)


def build_worker_environment() -> dict[str, str]:
    """This process's environment without what only the server may know."""
    return {name: value for name, value in os.environ.items() if name != DATABASE_VARIABLE}


def stop_yard_process(name: str) -> None:
    """End the server or the worker with its whole process group: SIGTERM, then SIGKILL."""
    with contextlib.suppress(KeyError, ProcessLookupError):
        group = os.getpgid(find_yard_processes()[name].pid)
        for signum in (signal.SIGTERM, signal.SIGKILL):
            os.killpg(group, signum)
            with contextlib.suppress(YardError):
                wait_for_result(f"the {name} did not end", lambda: not _is_group_alive(group), 5)
                break
        print(f"stopped the {name}")


def _is_group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for_result(failure: str, poll: Callable[[], Any], timeout_s: float) -> Any:
    """Call `found` until it returns something; YardError with `what` if it does not in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if result := poll():
            return result
        time.sleep(0.2)
    raise YardError(f"{failure} within {timeout_s:.0f} s")
