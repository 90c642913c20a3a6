"""Keeps a worker running, and as a service the server too, until this process is stopped; sweeps this machine's runs.

Everything runs in the main thread, in one loop: each turn starts the worker if it has exited, and sweeps if it is due.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.api import YardError
from scripts.processes import build_worker_environment, find_yard_processes, get_worker_name, stop_yard_process
from scripts.server import read_last_address
from torchyard.common.pool import read_pool
from torchyard.common.project_root import ROOT

_SWEEP_INTERVAL_S = 600.0  # as often as the schedule of sweep/lost
_POLL_INTERVAL_S = 1.0
_SERVER_POLL_INTERVAL_S = 5.0
_WORKER_STOP_TIMEOUT_S = 15.0


def keep_worker_running() -> int:
    """Keep a worker running until a signal or an error ends this process."""
    with _running_worker() as ensure_worker:
        while True:
            ensure_worker()
            time.sleep(_POLL_INTERVAL_S)


def serve_runs(start_server: Callable[[], str]) -> int:
    """Run the server and a worker in the foreground. SIGTERM or Ctrl-C stops both; jobs keep running.

    `start_server` returns the API's address. It is called again if this folder's own server has died. A server at
    PREFECT_API_URL is neither started again nor stopped.
    """
    # A handler of our own is not inherited. A worker that inherits an ignored SIGINT does not exit on SIGTERM.
    signal.signal(signal.SIGINT, _exit_on_signal)
    signal.signal(signal.SIGTERM, _exit_on_signal)
    is_own_server = False
    try:
        is_own_server = start_server() == read_last_address()
        with _running_worker() as ensure_worker:
            server_checked_at = time.monotonic()
            while True:
                if is_own_server and time.monotonic() - server_checked_at > _SERVER_POLL_INTERVAL_S:
                    _ensure_server(start_server)
                    server_checked_at = time.monotonic()
                ensure_worker()
                time.sleep(_POLL_INTERVAL_S)
    finally:
        if is_own_server:
            stop_yard_process("server")


def _exit_on_signal(signum: int, _: object) -> None:
    signal.signal(signum, signal.SIG_IGN)  # a second signal must not interrupt the cleanup
    sys.exit(0)


def _ensure_server(start_server: Callable[[], str]) -> None:
    """Start the server again if it has exited; a failed start is printed and repeated at the next check."""
    if "server" not in find_yard_processes():
        print("the server has exited: starting it again", flush=True)
        try:
            start_server()
        except YardError as error:
            print(error, file=sys.stderr, flush=True)


@contextmanager
def _running_worker() -> Iterator[Callable[[], None]]:
    """Yield a function that starts the worker if it is not running and sweeps if due; stop the worker at the end."""
    prefect = str(Path(sys.executable).parent / "prefect")
    argv = [prefect, "worker", "start", "--pool", read_pool(), "--type", "process", "--name", get_worker_name()]
    worker: subprocess.Popen[bytes] | None = None
    swept_at = time.monotonic()

    def ensure_worker() -> None:
        nonlocal worker, swept_at
        if (worker is None or worker.poll() is not None) and not has_other_worker():
            worker = subprocess.Popen(argv, cwd=ROOT, env=build_worker_environment())
        if time.monotonic() - swept_at > _SWEEP_INTERVAL_S:
            swept_at = time.monotonic()
            _sweep_machine()

    try:
        yield ensure_worker
    finally:
        if worker:
            stop_worker(worker)


def has_other_worker() -> bool:
    """Whether this folder has a worker that another process started, such as a killed service."""
    return "worker" in find_yard_processes(skipped_pid=os.getpid())


def stop_worker(worker: "subprocess.Popen[bytes]", *, timeout_s: float = _WORKER_STOP_TIMEOUT_S) -> None:
    """Stop the worker, which stops its flows; their jobs keep running under their lease.

    A worker that has not exited `timeout_s` seconds after its SIGTERM is killed.
    """
    worker.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        worker.wait(timeout_s)
        return
    worker.kill()
    worker.wait()


def _sweep_machine() -> None:
    """Do this machine's part of `sweep/lost`: a machine that runs that deployment sees only its own run folders."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        argv = [sys.executable, str(ROOT / "flows" / "sweep.py"), "--here"]
        subprocess.run(argv, check=False, cwd=ROOT, env=build_worker_environment(), timeout=_SWEEP_INTERVAL_S)
