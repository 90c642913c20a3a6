"""Signals: which ones end a run on purpose, and holding them off while something must come to its end."""

import asyncio
import signal
import threading
from typing import Self
from uuid import UUID

from prefect import get_client
from prefect.exceptions import TerminationSignal


class CancelRequested(BaseException):
    """The run was cancelled, and no signal came: a worker that died delivers none."""


# How Prefect and Python tell a flow that it shall end: none of them is an Exception, or would be caught as one.
STOPS = (TerminationSignal, KeyboardInterrupt, asyncio.CancelledError, CancelRequested)


class Hold:
    """SIGTERM and SIGINT do nothing between `begin` and the end of the block.

    Blocking them would not help: Prefect has other threads to take them.
    """

    def __enter__(self) -> Self:
        mine = threading.current_thread() is threading.main_thread()
        self._before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)} if mine else {}
        return self

    def begin(self) -> None:
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def cancelling(run_id: str) -> bool:
    """Whether somebody has cancelled the run. For processes that carry no run: those have a reporter."""
    try:
        with get_client(sync_client=True, httpx_settings={"timeout": 3}) as client:
            now = client.read_flow_run(UUID(run_id)).state
    except Exception:  # a server that is away cannot have asked
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
