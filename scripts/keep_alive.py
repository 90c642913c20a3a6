"""Keeps a worker running, and as a service the server too, until this process is stopped; sweeps this machine's runs.

Everything runs in the main thread, in one loop: each turn starts the worker if it has exited, and sweeps if it is due.
Prefect's server itself is kept running by another process, which has its listening socket (listener.py).
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from scripts.api import YardError
from scripts.listener import BorrowedListener
from scripts.processes import (
    build_worker_environment,
    exit_on_signal,
    find_yard_processes,
    get_worker_name,
    stop_yard_process,
)
from scripts.server import read_last_address
from torchyard.common.pool import read_pool
from torchyard.common.project_root import ROOT

_SWEEP_INTERVAL_S = 600.0  # as often as the schedule of sweep/lost
_POLL_INTERVAL_S = 1.0
_START_PAUSE_S = 5.0  # between two starts of a server that does not start
_WORKER_STOP_TIMEOUT_S = 15.0


class ServerGoneError(YardError):
    """The process that kept this folder's own server running has died, and the worker is stopped."""


def keep_worker_running() -> int:
    """Keep a worker running until a signal or an error ends this process. ServerGoneError: see `_keep_worker`."""
    _keep_worker(is_own_server=os.environ.get("PREFECT_API_URL") == read_last_address())
    return 0


def serve_runs(start_server: Callable[[], str]) -> int:
    """Run the server and a worker in the foreground. SIGTERM or Ctrl-C stops both; jobs keep running.

    `start_server` returns the API's address. It is called again if the process that keeps this folder's own server
    running has died. A server at PREFECT_API_URL is neither started again nor stopped.
    """
    # A handler of our own is not inherited. A worker that inherits an ignored SIGINT does not exit on SIGTERM.
    signal.signal(signal.SIGINT, exit_on_signal)
    signal.signal(signal.SIGTERM, exit_on_signal)
    is_own_server = False
    try:
        is_own_server = start_server() == read_last_address()
        while True:
            try:
                _keep_worker(is_own_server=is_own_server)
            except ServerGoneError as error:
                print(error, flush=True)
            stop_yard_process("worker")  # of a killed service: it has the last password
            _start_again(start_server)
    finally:
        if is_own_server:
            stop_yard_process("server")


def _start_again(start_server: Callable[[], str]) -> None:
    """Start the server; a failed start is printed and repeated."""
    while True:
        try:
            start_server()
        except YardError as error:
            print(error, file=sys.stderr, flush=True)
            time.sleep(_START_PAUSE_S)
        else:
            return


def _keep_worker(*, is_own_server: bool) -> None:
    """Start the worker whenever it is not running, and sweep when due; stop the worker at the end.

    The worker of this folder's own server inherits the server's listening socket, so that no other process gets the
    port, and with it the password, while the worker uses it. ServerGoneError if that server is not kept running any
    more.
    """
    listener = BorrowedListener() if is_own_server else None
    prefect = str(Path(sys.executable).parent / "prefect")
    argv = [prefect, "worker", "start", "--pool", read_pool(), "--type", "process", "--name", get_worker_name()]
    inherited_fds = [listener.fd] if listener else []
    worker: subprocess.Popen[bytes] | None = None
    swept_at = time.monotonic()
    try:
        while True:
            if listener and not listener.is_server_kept():
                raise ServerGoneError("the process that kept the server running has died: the worker is stopped")
            if (worker is None or worker.poll() is not None) and not has_other_worker():
                worker = subprocess.Popen(argv, cwd=ROOT, env=build_worker_environment(), pass_fds=inherited_fds)
            if time.monotonic() - swept_at > _SWEEP_INTERVAL_S:
                swept_at = time.monotonic()
                _sweep_machine()
            time.sleep(_POLL_INTERVAL_S)
    finally:
        if worker:
            stop_worker(worker)
        if listener:
            listener.close()


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
