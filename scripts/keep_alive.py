"""Keeps a worker running, and as a service the server too, until this process is ended; sweeps this machine's runs."""

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
_POLL_INTERVAL_S, _SERVER_POLL_INTERVAL_S = 1.0, 5.0
_WORKER_STOP_TIMEOUT_S = 15.0


def keep_worker_running() -> int:
    """Keep a worker running."""
    with _running_worker() as ensure_worker:
        while True:
            ensure_worker()
            time.sleep(_POLL_INTERVAL_S)


def serve_runs(start_server: Callable[[], str]) -> int:
    """Run what `start` starts and a worker in the foreground; SIGTERM or Ctrl-C ends both, and leaves jobs alone.

    `start` returns the API's address, and is called again if this folder's own server has died.
    """
    signal.signal(signal.SIGINT, _exit_on_signal)  # not inherited: a worker that ignores SIGINT does not end on SIGTERM
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
    signal.signal(signum, signal.SIG_IGN)  # once is enough
    sys.exit(0)


def _ensure_server(start_server: Callable[[], str]) -> None:
    if "server" not in find_yard_processes():
        print("the server has ended: it is started again", flush=True)
        try:
            start_server()
        except YardError as error:  # it is tried again
            print(error, file=sys.stderr, flush=True)


@contextmanager
def _running_worker() -> Iterator[Callable[[], None]]:
    """Yields what starts the worker if it does not run, and sweeps if it is time; at the end the worker is stopped."""
    prefect = str(Path(sys.executable).parent / "prefect")
    argv = [prefect, "worker", "start", "--pool", read_pool(), "--type", "process", "--name", get_worker_name()]
    worker: subprocess.Popen[bytes] | None = None
    swept_at = time.monotonic()

    def ensure_worker() -> None:
        nonlocal worker, swept_at
        if (worker is None or worker.poll() is not None) and not _has_other_worker():
            worker = subprocess.Popen(argv, cwd=ROOT, env=build_worker_environment())
        if time.monotonic() - swept_at > _SWEEP_INTERVAL_S:
            swept_at = time.monotonic()
            _sweep_machine()

    try:
        yield ensure_worker
    finally:
        if worker:
            _stop_worker(worker)


def _has_other_worker() -> bool:
    """Whether this folder has a worker that this process has not started: one of a tending process that was killed."""
    return "worker" in find_yard_processes(skipped_pid=os.getpid())


def _stop_worker(worker: "subprocess.Popen[bytes]") -> None:
    """End the worker, which ends its flows; their jobs live on under their lease."""
    worker.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        worker.wait(_WORKER_STOP_TIMEOUT_S)
        return
    worker.kill()
    worker.wait()


def _sweep_machine() -> None:
    """Do this machine's part of `sweep/lost`: whichever machine takes that sees only its own run folders."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        argv = [sys.executable, str(ROOT / "flows" / "sweep.py"), "--here"]
        subprocess.run(argv, check=False, cwd=ROOT, env=build_worker_environment(), timeout=_SWEEP_INTERVAL_S)
