"""The listening socket of this folder's server: whatever sends the password to its port holds this socket open.

A client sends its password to any process that listens at the port. Therefore the socket does not belong to Prefect's
server, which may die: the process `yard.py listen` opens it, starts the server with a copy, and starts another server
with it when that one dies. The process that keeps the worker running borrows a copy, which the worker inherits. So the
port is never free for another user's process while a worker would use it. Each start of `yard.py listen` has a new
password, which is useless to whoever gets the port afterwards.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.api import YardError
from scripts.processes import PREFECT_HOME, exit_on_signal
from scripts.server import is_healthy
from torchyard.common.project_root import ROOT

SERVER_SCRIPT = ROOT / "scripts" / "prefect_server.py"
_SOCKET_NAME = "listener"  # in PREFECT_HOME, which only this user can enter
_BACKLOG = 2048  # connections that wait while the server starts again
_POLL_INTERVAL_S = 1.0
_RESTART_PAUSE_S = 2.0
_STOP_TIMEOUT_S = 3.0  # `make down` kills what is alive after 5 s


def keep_server_running(port: int) -> int:
    """Listen at the port, and keep a Prefect server running there until a signal ends this process.

    Returns the exit code of a server that exits by itself before it has responded for the first time. OSError if the
    port is in use.
    """
    signal.signal(signal.SIGINT, exit_on_signal)
    signal.signal(signal.SIGTERM, exit_on_signal)
    has_responded = False
    borrowers: list[socket.socket] = []  # kept open: a borrower notices by their end that this process has died
    with open_listener(port) as listener, _open_lender() as lender:
        while True:
            with _running_server(listener) as server:
                while server.poll() is None:
                    has_responded = has_responded or is_healthy(port, os.getpid())
                    borrowers += _lend(lender, listener)
            is_killed = server.returncode < 0
            if not has_responded and not is_killed:
                return server.returncode
            print(f"the server has exited ({server.returncode}): starting it again", flush=True)
            time.sleep(_RESTART_PAUSE_S)


def open_listener(port: int) -> socket.socket:
    """A socket that listens at a port of 127.0.0.1, 0 for any. OSError if the port is in use."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(_BACKLOG)
    return listener


@contextmanager
def _running_server(listener: socket.socket) -> Iterator["subprocess.Popen[bytes]"]:
    """Start Prefect's server with a copy of the socket; stop it at the end."""
    fd = listener.fileno()
    server = subprocess.Popen([sys.executable, str(SERVER_SCRIPT), str(fd)], cwd=ROOT, pass_fds=[fd])
    try:
        yield server
    finally:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(_STOP_TIMEOUT_S)
        server.kill()
        server.wait()


@contextmanager
def _open_lender() -> Iterator[socket.socket]:
    """A socket in the private folder, at which this user's processes request a copy of the listening socket."""
    with socket.socket(socket.AF_UNIX) as lender, _short_path() as path:
        path.unlink(missing_ok=True)
        lender.bind(str(path))
        lender.listen()
        lender.settimeout(_POLL_INTERVAL_S)
        yield lender


@contextmanager
def _short_path() -> Iterator[Path]:
    """The path of the lender's socket by way of its open folder: such a path has at most 107 characters."""
    folder_fd = os.open(PREFECT_HOME, os.O_PATH | os.O_DIRECTORY)
    try:
        yield Path(f"/proc/self/fd/{folder_fd}", _SOCKET_NAME)
    finally:
        os.close(folder_fd)


def _lend(lender: socket.socket, listener: socket.socket) -> list[socket.socket]:
    """Wait a moment for a borrower, and send it a copy; return its connection, or nothing."""
    with contextlib.suppress(OSError):  # nobody came, or has gone again
        borrower, _ = lender.accept()
        socket.send_fds(borrower, [b"."], [listener.fileno()])
        return [borrower]
    return []


class BorrowedListener:
    """A copy of the listening socket, and the connection to the process that has lent it.

    While it is open, no other process can get the port. `is_server_kept`: that process lives, and keeps a server there.
    """

    def __init__(self) -> None:
        """YardError if there is no such process."""
        self._lender = socket.socket(socket.AF_UNIX)
        try:
            with _short_path() as path:
                self._lender.connect(str(path))
            _, fds, _, _ = socket.recv_fds(self._lender, 1, 1)
            (self.fd,) = fds
        except (OSError, ValueError) as error:
            self._lender.close()
            raise YardError(f"no process of this folder keeps its server running ({error})") from error

    def is_server_kept(self) -> bool:
        try:
            self._lender.recv(1, socket.MSG_DONTWAIT)  # it sends nothing more: only its end can be read
        except BlockingIOError:
            return True
        except OSError:  # it has ended
            return False
        return False

    def close(self) -> None:
        os.close(self.fd)
        self._lender.close()
