"""LocalControl: on the command line only signals end a run."""

import contextlib
import os
import signal
import threading
import time
from typing import Any

import pytest

from torchyard.run.control import LocalControl, Terminated


def wait_for_sigterm() -> None:
    """Receive SIGTERM in a run, in code that suppresses every Exception."""
    with LocalControl(), contextlib.suppress(Exception):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)


def test_sigterm_ends_the_run_and_not_the_process() -> None:
    """SIGTERM becomes an exception that no `except Exception` catches, and that the runner turns into an end."""
    with pytest.raises(Terminated) as stop:
        wait_for_sigterm()
    assert isinstance(stop.value, LocalControl.stops)


def test_old_handler_is_restored_after_the_run() -> None:
    """After the run, the calling program's handler of SIGTERM is installed again."""
    old_handler = signal.getsignal(signal.SIGTERM)
    with LocalControl():
        assert signal.getsignal(signal.SIGTERM) != old_handler
    assert signal.getsignal(signal.SIGTERM) == old_handler


def test_run_in_a_thread_leaves_the_signals_alone() -> None:
    """Only the main thread may set handlers, so a run in another thread works without them."""
    old_handler = signal.getsignal(signal.SIGTERM)
    handlers: list[Any] = []

    def run_in_thread() -> None:
        with LocalControl():
            handlers.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run_in_thread)
    thread.start()
    thread.join()
    assert handlers == [old_handler]
