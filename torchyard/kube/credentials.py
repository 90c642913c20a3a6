"""Credentials that expire: loaded in a limited time, and reloaded once for all threads whose requests were refused."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from http import HTTPStatus
from pathlib import Path
from typing import Generic, TypeVar

from torchyard.common.log import get_log
from torchyard.host.processes import list_descendants, send_signal
from torchyard.kube.retry import TransientError
from torchyard.model.errors import ClusterError

RELOAD_INTERVAL_S = 10.0  # between two reloads, if the new credentials are refused as well
RELOAD_TIMEOUT_S = 20.0  # after the start of a reload, no thread waits for it any more
PLUGIN_TIMEOUT_S = 300.0  # after the start of a reload, its processes are killed; until then a person may log in
_FAILED_RELOAD_INTERVAL_S = 1.0  # the same as RELOAD_INTERVAL_S after a failed reload: the file may be half written
T = TypeVar("T")


class Credentials(Generic[T]):
    """The credentials of a connection, in `current`, which every thread reads without a lock.

    A thread whose request is refused calls `renew` with the credentials that it used. The first such thread starts a
    reload; the others wait for it and find `current` changed. Reloads are limited to one per `RELOAD_INTERVAL_S`,
    because a server that refuses valid credentials would otherwise cause one per request.

    Threads. Each reload has a daemon thread, because a kubeconfig's plugin may wait for a network or a login forever.
    Nothing is locked meanwhile, and no second reload starts. A thread waits for it `RELOAD_TIMEOUT_S` at most, and its
    processes are killed after `PLUGIN_TIMEOUT_S`, by the next caller of `renew`; only Linux lists them.
    """

    def __init__(
        self, first: T, load: Callable[[], T], name: str = "the kubeconfig", *, timeout_s: float = RELOAD_TIMEOUT_S
    ) -> None:
        """Parameters of the reloads.

        load: returns new credentials; it may block.
        name: of what provides them, for messages: the kubeconfig or its plugin.
        timeout_s: how long a thread waits for a reload.
        """
        self.current = first
        self._load = load
        self._name = name
        self._timeout_s = timeout_s
        self._changed = threading.Condition()  # guards all attributes that follow, and writes of `current`
        self._reload_thread: threading.Thread | None = None  # None while there is no reload
        self._started_at = 0.0  # of the last reload, in monotonic seconds
        self._next_reload_at = 0.0  # monotonic seconds
        self._reload_error = ""  # of the last reload; empty if it succeeded

    def renew(self, used: T) -> bool:
        """Reload the credentials if `used` is the current one; return whether `current` differs from `used` now.

        Raises TransientError 401 if they cannot be loaded, or not in time.
        """
        with self._changed:
            if self.current is not used:
                return True
            if self._reload_thread is None and time.monotonic() >= self._next_reload_at:
                self._start_reload()
            remaining_s = self._started_at + self._timeout_s - time.monotonic()
            if not self._changed.wait_for(lambda: self._reload_thread is None, max(remaining_s, 0.0)):
                raise self._build_timeout_error()
            if self._reload_error:
                raise TransientError(f"the credentials cannot be reloaded: {self._reload_error}", 401)
            return self.current is not used

    def _start_reload(self) -> None:
        thread = threading.Thread(target=self._reload, daemon=True, name="credentials")
        thread.start()  # RuntimeError if this process can have no more threads
        self._reload_thread = thread
        self._started_at = time.monotonic()

    def _reload(self) -> None:
        credentials = None
        error_text = ""
        try:
            credentials = self._load()
        except Exception as error:  # of any class: those who wait report it, and their job is not affected
            error_text = str(error) or type(error).__name__
        with self._changed:
            interval_s = RELOAD_INTERVAL_S
            if credentials is None:
                interval_s = _FAILED_RELOAD_INTERVAL_S
            else:
                self.current = credentials
            self._next_reload_at = time.monotonic() + interval_s
            self._reload_error = error_text
            self._reload_thread = None
            self._changed.notify_all()

    def _build_timeout_error(self) -> TransientError:
        """The error for a reload that takes too long; one that has taken much too long is ended first."""
        elapsed_s = time.monotonic() - self._started_at
        if self._reload_thread and elapsed_s >= PLUGIN_TIMEOUT_S:
            _kill_children(self._reload_thread)
        problem = f"the credentials cannot be reloaded: {self._name} has not responded for {elapsed_s:.0f} s"
        return TransientError(f"{problem}; log in, or end its process", 401)


def load_first(load: Callable[[], T]) -> T:
    """The result of `load`, which reads a kubeconfig for the first time and may run its plugin.

    It has a thread of its own, like a reload. A warning is logged if it takes longer than `RELOAD_TIMEOUT_S`: a person
    may be logging in. After `PLUGIN_TIMEOUT_S` its processes are killed.

    Raises what `load` raises, and ClusterError with status 401 if it takes too long.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(load())
        except BaseException as error:
            result.set_exception(error)

    thread = threading.Thread(target=run, daemon=True, name="credentials")
    thread.start()
    if not wait({result}, RELOAD_TIMEOUT_S).done:
        message = "the credentials of the kubeconfig are not loaded after %.0f s: its plugin may wait for a login"
        get_log().warning(message, RELOAD_TIMEOUT_S)
        if not wait({result}, PLUGIN_TIMEOUT_S - RELOAD_TIMEOUT_S).done:
            _kill_children(thread)
            problem = (
                f"its plugin has not responded for {PLUGIN_TIMEOUT_S:.0f} s, and was ended; log in, then try again"
            )
            raise ClusterError("kubeconfig", "load the credentials", problem, HTTPStatus.UNAUTHORIZED)
    return result.result()


def _kill_children(thread: threading.Thread) -> None:
    """Kill the processes that a thread has started, and theirs. Without effect where the system does not list them.

    A parent is killed before its children: a script that outlives its plugin could end with half a result.
    """
    with contextlib.suppress(OSError):
        children = Path(f"/proc/self/task/{thread.native_id}/children").read_text(encoding="ascii")
        pids = [int(pid) for pid in children.split()]
        send_signal([*pids, *list_descendants(pids)], signal.SIGKILL)
