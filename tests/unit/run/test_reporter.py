"""A run of the command line: signals are the only orchestrator."""

import contextlib
import os
import signal
import threading
import time
from typing import Any

import pytest

from torchyard.run.reporter import LocalReporter, Terminated


def wait_for_sigterm() -> None:
    """Get a SIGTERM inside a run, as code that survives every error would."""
    with LocalReporter(), contextlib.suppress(Exception):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)


def test_sigterm_ends_the_run_and_not_the_process() -> None:
    """SIGTERM becomes an exception that no `except Exception` catches, and that the runner turns into an end."""
    with pytest.raises(Terminated) as stop:
        wait_for_sigterm()
    assert isinstance(stop.value, LocalReporter.stops)


def test_handler_of_before_is_back_after_the_run() -> None:
    """The program that called the run handles SIGTERM by itself again."""
    old_handler = signal.getsignal(signal.SIGTERM)
    with LocalReporter():
        assert signal.getsignal(signal.SIGTERM) != old_handler
    assert signal.getsignal(signal.SIGTERM) == old_handler


def test_run_in_a_thread_leaves_the_signals_alone() -> None:
    """Only the main thread may set handlers; a run in another one works without them."""
    old_handler = signal.getsignal(signal.SIGTERM)
    handlers: list[Any] = []

    def work() -> None:
        with LocalReporter():
            handlers.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [old_handler]
