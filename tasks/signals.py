"""Signals: which ones end a run on purpose, and holding them off while something must come to its end."""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Iterator
from uuid import UUID

from prefect import get_client
from prefect.exceptions import TerminationSignal

# How Prefect and Python tell a flow that it shall end: none of them is an Exception, or would be caught as one.
STOPS = (TerminationSignal, KeyboardInterrupt, asyncio.CancelledError)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """SIGTERM and SIGINT do nothing in here. Blocking them would not help: Prefect has other threads to take them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def cancelling(run_id: str) -> bool:
    """Whether a signal came because somebody cancelled the run."""
    try:
        with get_client(sync_client=True) as client:
            now = client.read_flow_run(UUID(run_id)).state
    except Exception:
        return False
    return now is not None and (now.is_cancelling() or now.is_cancelled())


def stopper(stop: BaseException) -> str:
    match stop:
        case KeyboardInterrupt():
            return "Ctrl-C"
        case asyncio.CancelledError():
            return "the flow's timeout"
        case _:
            return "SIGTERM"
