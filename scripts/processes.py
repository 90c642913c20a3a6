"""Processes that outlive the command that starts them: this folder's Prefect server and its worker.

They are found only in /proc, by arguments and environment. A file with process ids could be incomplete after a crash,
or name an id that another process has been given since.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from scripts.api import YardError
from torchyard.common.identity import identify_holder
from torchyard.common.project_root import ROOT

PREFECT_HOME = ROOT / ".prefect"
DATABASE_VARIABLE = "PREFECT_SERVER_DATABASE_CONNECTION_URL"  # contains a password, so only the server gets it
YARD_SCRIPT = ROOT / "scripts" / "yard.py"


class YardProcess(NamedTuple):
    """A running server or worker of this folder."""

    pid: int
    argv: list[str]
    environment: dict[str, str]


def get_worker_name() -> str:
    """The name of this folder's worker, unique in its pool, even among containers with the same path.

    The name identifies it in Prefect's list, which shows a worker as ONLINE for 90 s after its death.
    """
    return f"torchyard {identify_holder(str(PREFECT_HOME / 'worker'))}".replace("/", "-")


def find_yard_processes(skipped_pid: int = 0) -> dict[str, YardProcess]:
    """This folder's running `server`, `worker` and `service`, each with one of its processes, without `skipped_pid`."""
    processes: dict[str, YardProcess] = {}
    for folder in Path("/proc").iterdir():
        if folder.name == str(skipped_pid) or not folder.name.isdigit():
            continue
        process = _read_process(folder)
        name = _identify_process(process) if process else None
        if process and name:
            processes.setdefault(name, process)
    return processes


def _read_process(folder: Path) -> YardProcess | None:
    """The process of a folder in /proc; None if it belongs to another user or has exited."""
    try:
        if folder.stat().st_uid != os.getuid():
            return None
        argv = (folder / "cmdline").read_text(errors="replace").split("\0")
        pairs = (folder / "environ").read_text(errors="surrogateescape").split("\0")
    except OSError:
        return None
    environment = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    return YardProcess(int(folder.name), argv, environment)


def _identify_process(process: YardProcess) -> str | None:
    """`server`, `worker` or `service`; None if the process is none of this folder's."""
    if get_worker_name() in process.argv or process.argv[1:3] == [str(YARD_SCRIPT), "tend"]:
        return "worker"
    if process.argv[1:3] == [str(YARD_SCRIPT), "serve"]:
        return "service"
    if process.argv[1:3] == [str(YARD_SCRIPT), "listen"]:
        return "server"
    return None


def start_yard_process(
    name: str, command: list[str], environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process in a new session; its output goes to NAME.log. `environment`: added variables."""
    process_environment = dict(os.environ) if name == "server" else build_worker_environment()
    process_environment.update(environment or {})
    log_fd = os.open(PREFECT_HOME / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    # A worker that inherits an ignored SIGINT does not exit on SIGTERM.
    old_handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log_fd,
            stderr=log_fd,
            start_new_session=True,
            cwd=ROOT,
            env=process_environment,
        )
    finally:
        signal.signal(signal.SIGINT, old_handler)
        os.close(log_fd)


def exit_on_signal(signum: int, _: object) -> None:
    """A handler that ends this process with its cleanup, which a second signal does not interrupt."""
    signal.signal(signum, signal.SIG_IGN)
    sys.exit(0)


def build_worker_environment() -> dict[str, str]:
    """This process's environment without the database's address, which contains a password."""
    return {name: value for name, value in os.environ.items() if name != DATABASE_VARIABLE}


def stop_yard_process(name: str) -> None:
    """Stop the server or the worker with its whole process group: SIGTERM, and SIGKILL if it is alive after 5 s."""
    with contextlib.suppress(KeyError, ProcessLookupError):  # it is not running, or has just exited
        group = os.getpgid(find_yard_processes()[name].pid)
        for signum in (signal.SIGTERM, signal.SIGKILL):
            os.killpg(group, signum)
            with contextlib.suppress(YardError):
                wait_for_result(f"the {name} has not exited", lambda: not _is_group_alive(group), timeout_s=5)
                break
        print(f"stopped the {name}")


def _is_group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for_result(failure: str, poll: Callable[[], Any], *, timeout_s: float) -> Any:
    """Call `poll` until it returns a true value, and return that.

    Raises YardError after `timeout_s`; `failure` is the start of its message, which ends with `within 5 s`.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        result = poll()
        if result:
            return result
        time.sleep(0.2)
    raise YardError(f"{failure} within {timeout_s:.0f} s")
